mkdir -p dir/sub/deep; echo 1 > dir/one.txt; echo 2 > dir/two.txt; echo 3 > dir/sub/three.txt; echo 4 > dir/sub/deep/four.txt
echo a > a.txt; echo m > m.md

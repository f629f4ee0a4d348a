mkdir -p dir/sub keep/deep; echo 1 > dir/one.txt; echo 2 > keep/deep/two.txt; echo b > b.txt
cat > .dockerignore <<'RULES'
*
!dir/none
!dir/sub/*.md
!keep/deep/two.txt
!b.txt
RULES

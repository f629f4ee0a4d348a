echo a > a.txt; echo b > b.md; echo 'a.txt' > .sealignore

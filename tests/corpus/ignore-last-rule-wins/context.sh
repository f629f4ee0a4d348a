mkdir -p src/deep docs node_modules/x .git
echo 1 > src/a.c; echo 2 > src/a.o; echo 3 > src/deep/b.c; echo 4 > src/deep/b.o
echo 5 > docs/readme.md; echo 6 > docs/keep.md; echo 7 > node_modules/x/y; echo 8 > .git/config; echo 9 > top.o; echo 10 > .env
cat > .dockerignore <<'RULES'
*.md
!docs
docs/*.md
!docs/keep.md
src
!src/deep/b.c
RULES

mkdir -p empty-dir nest/a/b/c
: > empty-file

mkdir -p t/a/b; echo f > t/a/b/f
tar --owner=7 --group=8 --numeric-owner -C t -cf a.tar a/b/f
rm -rf t

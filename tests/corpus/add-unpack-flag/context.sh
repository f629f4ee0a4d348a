echo one > one; tar --mtime=@0 --owner=0 --group=0 --mode=644 -cf a.tar one; rm one; truncate -s 0 empty

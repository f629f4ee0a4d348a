mkdir a b; echo 1 > a/one; echo 2 > b/two
tar --owner=0 --group=0 -C a -cf one.tar one; tar --owner=0 --group=0 -C b -cf two.tar two
rm -rf a b

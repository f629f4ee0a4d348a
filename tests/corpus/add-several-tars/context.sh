mkdir a b; echo 1 > a/one; echo 1 > a/both; echo 2 > b/two; echo 2 > b/both
tar --owner=0 --group=0 -C a -cf one.tar .; tar --owner=0 --group=0 -C b -cf two.tar .
rm -rf a b; echo plain > plain.txt

# shellcheck shell=bash
# The link first, then what lies below it by the link's name.
mkdir -p t/lib/deep
echo a > t/lib/a
echo b > t/lib/deep/b
ln -s lib t/link
tar -C t --owner=0 --group=0 -cf relative.tar lib link
tar -C t --owner=0 --group=0 --transform 's,^lib,link,' -rf relative.tar lib/deep lib/a
echo new > t/lib/a
tar -C t --owner=0 --group=0 --transform 's,^lib,link,' -rf relative.tar lib/a
ln -sfn /lib t/link
tar -C t --owner=0 --group=0 -cf absolute.tar --no-recursion lib link
tar -C t --owner=0 --group=0 --transform 's,^lib,link,' -rf absolute.tar lib/deep/b
rm -r t

# shellcheck shell=bash
mkdir -p t/d
echo a > t/d/a
ln -s d/a t/link
ln -s d t/dir
ln t/link t/again
ln t/dir t/z-dir
ln t/d/a t/d/hard
tar -C t --owner=0 --group=0 --sort=name -cf a.tar d link dir again z-dir
# Below the further name of the symlink, and a link to what is replaced afterwards.
echo b > t/d/b
tar -C t --owner=0 --group=0 --transform 's,^d/b,z-dir/b,' -rf a.tar d/b
rm t/d/a t/d/hard
echo new > t/d/a
tar -C t --owner=0 --group=0 -rf a.tar d/a
rm -r t

# shellcheck shell=bash
# The build context of every entry that brings none of its own; runs in an empty directory.
mkdir -p dir/sub/deep empty bin
echo a > a.txt
echo b > b.txt
echo c > c.md
echo one > dir/one.txt
echo two > dir/two.txt
echo hidden > dir/.hidden
echo three > dir/sub/three.txt
echo four > dir/sub/deep/four.txt
ln -s one.txt dir/link
printf '#!/bin/sh\necho tool\n' > bin/tool
chmod 755 bin/tool

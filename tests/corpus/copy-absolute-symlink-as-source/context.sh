mkdir dir
echo inside > dir/x
ln -s /dir/x link

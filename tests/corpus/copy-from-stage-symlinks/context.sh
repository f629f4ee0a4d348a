mkdir dir; echo x > dir/x
ln -s dir/x link
ln -s dir dirlink
ln -s /dir/x abs

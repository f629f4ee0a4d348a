mkdir dir
echo x > dir/x; echo y > dir/y; ln -s x dir/z
ln -s dir/x to-file
ln -s dir to-dir
ln -s to-file chain

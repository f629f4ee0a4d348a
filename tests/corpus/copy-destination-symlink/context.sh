mkdir -p tree/real
ln -s real tree/link
ln -s /real tree/absolute
echo a > a.txt

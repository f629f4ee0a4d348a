echo one > 'a file.txt'
echo two > b.txt

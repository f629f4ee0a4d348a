mkdir -p tree/real; ln -s real tree/link; echo a > a.txt

mkdir star
echo odd > '[odd].txt'
echo o > o.txt
echo star > 'star/*.txt'
echo plain > star/plain.txt

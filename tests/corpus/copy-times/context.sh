echo a > epoch; touch -d @0 epoch
echo b > old; touch -d @100000000 old
echo c > quarter; touch -d '2001-02-03 04:05:06.25' quarter
echo f > far; touch -d @4102444800 far
ln -s old link; touch -h -d @200000000 link
mkdir dir; touch -d @300000000 dir

mkdir d
echo shared > one
ln one two; ln one d/three
echo alone > alone
echo pair > d/p1; ln d/p1 d/p2

mkdir d
echo shared > one
ln one d/two

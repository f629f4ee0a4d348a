mkdir d
echo x > d/x
chmod 0700 d
chmod 0711 .

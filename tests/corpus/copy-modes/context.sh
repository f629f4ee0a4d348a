for mode in 0000 0400 0444 0600 0640 0644 0666 0700 0711 0755 0775 0777 1644 2755 4755 6755; do
  echo "$mode" > "f$mode"; chmod "$mode" "f$mode"
done
for mode in 0500 0700 0711 0750 0755 0777 1777 2755 3777; do
  mkdir "d$mode"; echo x > "d$mode/x"; chmod "$mode" "d$mode"
done

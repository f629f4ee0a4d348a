truncate -s 2M s; printf middle | dd of=s bs=1 seek=1000000 conv=notrunc status=none
tar --format=gnu -S --owner=0 --group=0 -cf old.tar s
tar --format=pax -S --owner=0 --group=0 -cf pax.tar s
rm s

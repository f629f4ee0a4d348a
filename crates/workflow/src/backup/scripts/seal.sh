#!/bin/bash -e
# what was saved: the noted digest or `-`, size and name of each file
# Directories become one archive. IMGCTL_BACKUP: where it is. IMGCTL_FILES: name of the archive.

cd "$IMGCTL_BACKUP"
umask 077
directories=()
for entry in */; do
  if [ -d "$entry" ]; then directories+=("./$entry"); fi
done
if [ "${#directories[@]}" != 0 ]; then
  tar --sort=name --numeric-owner -cf "$IMGCTL_FILES.new" "${directories[@]}"
  mv -f "$IMGCTL_FILES.new" "$IMGCTL_FILES"
fi
# Prints the digest of the file $1 that is noted beside it.
noted() {
  local listed="./${1%.*}.sha256" sum of
  if [ -f "$listed" ] && ! [ "./$1" -nt "$listed" ] && read -r sum of <"$listed" &&
    [ "$of" = "$1" ] && [[ $sum =~ ^[0-9a-f]{64}$ ]]; then
    printf '%s' "$sum"
  fi
}
find . -maxdepth 1 -type f ! -name '*.new' -printf '%s %f\0' | sort -z -k 2 | while IFS=' ' read -r -d '' size name; do
  sum=$(noted "$name")
  printf '%s %s %q\n' "${sum:--}" "$size" "$name"
done

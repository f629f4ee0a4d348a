touch -- '-dash' 'with space' "quo'te" 'dou"ble' 'back\slash' '$dollar' '`tick`' '#hash' '*' '?' '[x]' '{a,b}' '~' '...' ' lead' 'trail '
touch "$(printf 'new\nline')" "$(printf 'tab\there')" "$(printf '\001control')"
touch 'ümlaut' '日本語' "$(printf 'latin1-\374')" "$(printf '\377\376')"
mkdir 'dir with space'; touch 'dir with space/-x'
ln -s "$(printf 'target-\374')" "$(printf 'link-\374')"

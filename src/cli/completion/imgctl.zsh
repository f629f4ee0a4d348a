#compdef imgctl
# Completion of imgctl for zsh: imgctl itself says what fits.
_imgctl() {
    local -a lines offers
    local line
    lines=("${(@f)$(${words[1]} complete -- "${(@Q)words[1,CURRENT]}" 2>/dev/null)}")
    for line in $lines; do
        [[ -n $line ]] && offers+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}")
    done
    if (( $#offers )); then _describe -V imgctl offers; else _files; fi
}
if [ "$funcstack[1]" = "_imgctl" ]; then _imgctl "$@"; else compdef _imgctl imgctl; fi

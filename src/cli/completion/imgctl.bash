# Completion of imgctl for bash: imgctl itself says what fits.
_imgctl() {
    local line=${COMP_LINE:0:COMP_POINT} words begun cut
    read -ra words <<< "$line"
    [[ $line == *[[:space:]] ]] && words+=("")
    begun=${words[${#words[@]}-1]}
    mapfile -t COMPREPLY < <("${words[0]}" complete -- "${words[@]}" 2>/dev/null)
    COMPREPLY=("${COMPREPLY[@]%%$'\t'*}")
    # bash replaces only what follows the last of these.
    if [[ $begun == *[:=]* ]]; then
        cut=${begun%"${begun##*[:=]}"}
        COMPREPLY=("${COMPREPLY[@]#"$cut"}")
    fi
    [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == */ ]] && compopt -o nospace
    return 0
}
complete -o bashdefault -o default -F _imgctl imgctl

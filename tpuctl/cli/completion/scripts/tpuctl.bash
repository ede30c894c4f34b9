_tpuctl_completion() {
    local IFS=$'\n'
    COMPREPLY=($(env COMP_WORDS="${COMP_WORDS[*]}" COMP_CWORD="$COMP_CWORD" \
        _TPUCTL_COMPLETE=bash "$1" 2>/dev/null))
}
complete -o default -F _tpuctl_completion tpuctl

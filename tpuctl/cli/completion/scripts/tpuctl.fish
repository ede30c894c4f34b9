function __tpuctl_offers
    set -l offers (env _TPUCTL_COMPLETE=fish _TPUCTL_LINE=(commandline -cp) tpuctl 2>/dev/null)
    if test -n "$offers[1]"
        printf '%s\n' $offers
    else
        __fish_complete_path (commandline -ct)
    end
end
complete --command tpuctl --no-files --keep-order --arguments '(__tpuctl_offers)'

//! What Linkerd itself runs.

/// The arguments of Linkerd's chart with its default values (charts/partials/templates/_proxy-init.tpl).
pub const CHART_ARGUMENTS: [&str; 10] = [
    "--incoming-proxy-port",
    "4143",
    "--outgoing-proxy-port",
    "4140",
    "--proxy-uid",
    "2102",
    "--inbound-ports-to-ignore",
    "4190,4191,4567,4568",
    "--outbound-ports-to-ignore",
    "4567,4568",
];

/// The commands that linkerd-init runs for [`CHART_ARGUMENTS`], in its order (pkg/iptables/iptables.go), where `mode`
/// is `nft` or `legacy`: twelve a family.
pub fn commands(mode: &str) -> Vec<Vec<String>> {
    const RULES: [&str; 10] = [
        "-t nat -N PROXY_INIT_REDIRECT",
        "-t nat -A PROXY_INIT_REDIRECT -p tcp --match multiport --dports 4190,4191,4567,4568 -j RETURN -m comment \
         --comment proxy-init/ignore-port-4190,4191,4567,4568",
        "-t nat -A PROXY_INIT_REDIRECT -p tcp -j REDIRECT --to-port 4143 -m comment --comment \
         proxy-init/redirect-all-incoming-to-proxy-port",
        "-t nat -A PREROUTING -j PROXY_INIT_REDIRECT -m comment --comment proxy-init/install-proxy-init-prerouting",
        "-t nat -N PROXY_INIT_OUTPUT",
        "-t nat -A PROXY_INIT_OUTPUT -m owner --uid-owner 2102 -j RETURN -m comment --comment \
         proxy-init/ignore-proxy-user-id",
        "-t nat -A PROXY_INIT_OUTPUT -o lo -j RETURN -m comment --comment proxy-init/ignore-loopback",
        "-t nat -A PROXY_INIT_OUTPUT -p tcp --match multiport --dports 4567,4568 -j RETURN -m comment --comment \
         proxy-init/ignore-port-4567,4568",
        "-t nat -A PROXY_INIT_OUTPUT -p tcp -j REDIRECT --to-port 4140 -m comment --comment \
         proxy-init/redirect-all-outgoing-to-proxy-port",
        "-t nat -A OUTPUT -j PROXY_INIT_OUTPUT -m comment --comment proxy-init/install-proxy-init-output",
    ];
    ["iptables", "ip6tables"]
        .iter()
        .flat_map(|family| {
            let save = format!("{family}-{mode}-save -t nat");
            let rules = RULES.iter().map(move |rule| format!("{family}-{mode} {rule}"));
            std::iter::once(save.clone()).chain(rules).chain(std::iter::once(save))
        })
        .map(|line| line.split_whitespace().map(ToOwned::to_owned).collect())
        .collect()
}

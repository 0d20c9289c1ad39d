# syntax=docker/dockerfile:1
# The init container's image: the static binary and nothing else. Target `legacy` has iptables-legacy beside it.
#
#   docker buildx build --platform linux/amd64,linux/arm64 -t proxy-init .
#   docker buildx build --target legacy -t proxy-init:legacy .
#
# Release tags are pinned; pin digests too where you build for production.

# Debian 13 with Rust.
FROM rust:1.95.0-slim-trixie AS build
RUN apt-get update && apt-get install --yes --no-install-recommends \
    libcap2-bin libmnl-dev libnftnl-dev pkg-config
WORKDIR /src
COPY . .
# What `cargo xtask build` does, without the tests' tools.
RUN mkdir -p target/static && lib=$(pkg-config --variable=libdir libmnl) && \
    cp "$lib/libmnl.a" "$lib/libnftnl.a" target/static/ && \
    export LIBMNL_VERSION=$(pkg-config --modversion libmnl) LIBNFTNL_VERSION=$(pkg-config --modversion libnftnl) && \
    export LIBMNL_LIB_DIR=/src/target/static LIBNFTNL_LIB_DIR=/src/target/static && \
    export RUSTFLAGS="-C target-feature=+crt-static -C relocation-model=static" && \
    cargo build --release --locked --package proxy-init --target "$(uname -m)-unknown-linux-gnu" && \
    binary="target/$(uname -m)-unknown-linux-gnu/release/proxy-init" && \
    for root in /out /out-legacy; do \
        install -D "$binary" "$root/usr/local/bin/proxy-init" && mkdir -p "$root/usr/lib/linkerd" && \
        ln -s /usr/local/bin/proxy-init "$root/usr/lib/linkerd/linkerd2-proxy-init"; \
    done && \
    # Permitted, not effective: proxy-init takes it up itself, and can say so where it has been dropped.
    setcap cap_net_admin=p /out/usr/local/bin/proxy-init && \
    setcap cap_net_admin,cap_net_raw=p /out-legacy/usr/local/bin/proxy-init

FROM debian:13.2-slim AS legacy
RUN apt-get update && apt-get install --yes --no-install-recommends iptables && rm -rf /var/lib/apt/lists/*
LABEL org.opencontainers.image.title="proxy-init" \
      org.opencontainers.image.description="Redirects a pod's TCP through its sidecar proxy; with iptables-legacy" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /out-legacy/ /
# The xtables lock is in /run, which a pod mounts as an emptyDir; see deploy/pod.yaml.
USER 65534
ENTRYPOINT ["/usr/local/bin/proxy-init"]

FROM scratch
LABEL org.opencontainers.image.title="proxy-init" \
      org.opencontainers.image.description="Redirects a pod's TCP through its sidecar proxy in one netlink transaction" \
      org.opencontainers.image.licenses="Apache-2.0"
# The two paths that Linkerd's charts have used.
COPY --from=build /out/ /
# The binary has the file capability cap_net_admin; nft and native mode need no other.
USER 65534
ENTRYPOINT ["/usr/local/bin/proxy-init"]

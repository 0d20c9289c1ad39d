//! Numbers of the kernel's nf_tables interface that libc doesn't have, under the names they have in
//! linux/netfilter/nf_tables.h, nfnetlink_hook.h, nfnetlink.h and netlink.h. Those of expressions' attributes are in
//! [`expression`](super::expression).

pub(crate) const NFTA_GEN_ID: u16 = 1;

pub(crate) const NFTA_TABLE_NAME: u16 = 1;
pub(crate) const NFTA_TABLE_FLAGS: u16 = 2;
pub(crate) const NFTA_TABLE_USE: u16 = 3;
pub(crate) const NFTA_TABLE_USERDATA: u16 = 6;
pub(crate) const NFT_TABLE_F_DORMANT: u32 = 1;
pub(crate) const NFT_TABLE_F_OWNER: u32 = 2;

pub(crate) const NFTA_CHAIN_TABLE: u16 = 1;
pub(crate) const NFTA_CHAIN_NAME: u16 = 3;
pub(crate) const NFTA_CHAIN_HOOK: u16 = 4;
pub(crate) const NFTA_CHAIN_POLICY: u16 = 5;
pub(crate) const NFTA_CHAIN_TYPE: u16 = 7;
pub(crate) const NFTA_CHAIN_USERDATA: u16 = 12;

pub(crate) const NFTA_HOOK_HOOKNUM: u16 = 1;
pub(crate) const NFTA_HOOK_PRIORITY: u16 = 2;
pub(crate) const NFTA_HOOK_DEV: u16 = 3;
pub(crate) const NFTA_HOOK_DEVS: u16 = 4;

pub(crate) const NFTA_DEVICE_NAME: u16 = 1;
/// Since Linux 6.16: the devices whose names begin so.
pub(crate) const NFTA_DEVICE_PREFIX: u16 = 2;

pub(crate) const NFTA_RULE_TABLE: u16 = 1;
pub(crate) const NFTA_RULE_CHAIN: u16 = 2;
pub(crate) const NFTA_RULE_HANDLE: u16 = 3;
pub(crate) const NFTA_RULE_EXPRESSIONS: u16 = 4;
pub(crate) const NFTA_RULE_COMPAT: u16 = 5;
pub(crate) const NFTA_RULE_POSITION: u16 = 6;
pub(crate) const NFTA_RULE_USERDATA: u16 = 7;

pub(crate) const NFTA_RULE_COMPAT_PROTO: u16 = 1;
pub(crate) const NFTA_RULE_COMPAT_FLAGS: u16 = 2;

pub(crate) const NFTA_EXPR_NAME: u16 = 1;
pub(crate) const NFTA_EXPR_DATA: u16 = 2;

pub(crate) const NFTA_IMMEDIATE_DATA: u16 = 2;
pub(crate) const NFTA_LOOKUP_FLAGS: u16 = 5;
pub(crate) const NFTA_BITWISE_OP: u16 = 6;
pub(crate) const NFTA_REDIR_REG_PROTO_MIN: u16 = 1;
pub(crate) const NFTA_REDIR_REG_PROTO_MAX: u16 = 2;

pub(crate) const NFTA_DATA_VALUE: u16 = 1;
pub(crate) const NFTA_DATA_VERDICT: u16 = 2;

pub(crate) const NFTA_VERDICT_CODE: u16 = 1;
pub(crate) const NFTA_VERDICT_CHAIN: u16 = 2;

pub(crate) const NFNL_MSG_COMPAT_GET: i32 = 0;
pub(crate) const NFTA_COMPAT_NAME: u16 = 1;
pub(crate) const NFTA_COMPAT_REV: u16 = 2;
pub(crate) const NFTA_COMPAT_TYPE: u16 = 3;

pub(crate) const NFT_SET_CONCAT: i32 = 0x80;

pub(crate) const NFTA_SET_TABLE: u16 = 1;
pub(crate) const NFTA_SET_NAME: u16 = 2;
pub(crate) const NFTA_SET_FLAGS: u16 = 3;
pub(crate) const NFTA_SET_KEY_LEN: u16 = 5;

pub(crate) const NFTA_SET_ELEM_LIST_TABLE: u16 = 1;
pub(crate) const NFTA_SET_ELEM_LIST_SET: u16 = 2;
pub(crate) const NFTA_SET_ELEM_LIST_ELEMENTS: u16 = 3;

pub(crate) const NFTA_SET_ELEM_KEY: u16 = 1;
pub(crate) const NFTA_SET_ELEM_FLAGS: u16 = 3;
pub(crate) const NFTA_SET_ELEM_DATA: u16 = 2;
pub(crate) const NFTA_SET_ELEM_EXPIRATION: u16 = 5;
pub(crate) const NFTA_SET_ELEM_EXPR: u16 = 7;
pub(crate) const NFTA_SET_ELEM_KEY_END: u16 = 10;
pub(crate) const NFTA_SET_ELEM_EXPRESSIONS: u16 = 11;
pub(crate) const NFT_SET_ELEM_INTERVAL_END: u32 = 1;
pub(crate) const NFT_SET_ELEM_CATCHALL: u32 = 2;

pub(crate) const NFNL_MSG_HOOK_GET: i32 = 0;
pub(crate) const NFNLA_HOOK_HOOKNUM: u16 = 1;
pub(crate) const NFNLA_HOOK_PRIORITY: u16 = 2;
pub(crate) const NFNLA_HOOK_FUNCTION_NAME: u16 = 4;

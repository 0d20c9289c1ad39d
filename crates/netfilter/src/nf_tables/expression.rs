//! nf_tables expressions, the pieces that a rule is made of, as the kernel dumps them. Each is one line of
//! `nft --debug=netlink list ruleset`.

use super::uapi::*;
use crate::netlink::message::{Attributes, Malformed, be32, be64, string};

/// Makes a structure of each expression, and [`Expression`] of all of them, of lines that say an expression's name and, for
/// each of its parts, the type and the attribute that has it. Expressions of one name are told apart by the attributes
/// that they have.
macro_rules! expressions {
    ($($(#[$doc:meta])* $expression:ident $(<$lifetime:lifetime>)? $name:literal {
        $($part:ident: $type:ty = $attribute:ident($number:literal)),+ $(,)?
    })+) => {
        $($(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) struct $expression $(<$lifetime>)? { $(pub(crate) $part: $type),+ })+

        /// One expression. What it holds of a message is borrowed from it.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Expression<'a> {
            $($expression($expression $(<$lifetime>)?),)+
            /// Another one, by its name.
            Other(&'a [u8]),
        }

        impl<'a> Expression<'a> {
            /// Reads one element of a rule's list. One whose attributes aren't understood is another one.
            pub(crate) fn read(element: Attributes<'a>) -> Result<Self, Malformed> {
                let name = string(element.get(NFTA_EXPR_NAME)?)?;
                let data = Attributes(element.find(NFTA_EXPR_DATA)?.unwrap_or_default());
                $(if name == $name.as_bytes()
                    && let ($(Some($part),)+) = ($(<$type>::read(data, $number)?,)+)
                {
                    return Ok(Self::$expression($expression { $($part),+ }));
                })+
                Ok(Self::Other(name))
            }
        }
    };
}

expressions! {
    Counter "counter" { bytes: u64 = NFTA_COUNTER_BYTES(1), packets: u64 = NFTA_COUNTER_PACKETS(2) }
    /// `[ meta load KEY => reg REGISTER ]`; the key is one of `NFT_META_*`.
    Meta "meta" { key: i32 = NFTA_META_KEY(2), register: u32 = NFTA_META_DREG(1) }
    SetMeta "meta" { key: i32 = NFTA_META_KEY(2), register: u32 = NFTA_META_SREG(3) }
    /// `[ cmp OPERATION reg REGISTER VALUE ]`; the operation is one of `NFT_CMP_*`.
    Compare<'a> "cmp" {
        register: u32 = NFTA_CMP_SREG(1),
        operation: i32 = NFTA_CMP_OP(2),
        value: Data<'a> = NFTA_CMP_DATA(3),
    }
    /// `[ payload load LENGTH b @ BASE header + OFFSET => reg REGISTER ]`
    Payload "payload" {
        register: u32 = NFTA_PAYLOAD_DREG(1),
        base: i32 = NFTA_PAYLOAD_BASE(2),
        offset: u32 = NFTA_PAYLOAD_OFFSET(3),
        length: u32 = NFTA_PAYLOAD_LEN(4),
    }
    /// `[ payload write … => LENGTH b @ BASE header + OFFSET ]`
    SetPayload "payload" {
        register: u32 = NFTA_PAYLOAD_SREG(5),
        base: i32 = NFTA_PAYLOAD_BASE(2),
        offset: u32 = NFTA_PAYLOAD_OFFSET(3),
        length: u32 = NFTA_PAYLOAD_LEN(4),
    }
    Value<'a> "immediate" { register: u32 = NFTA_IMMEDIATE_DREG(1), value: Data<'a> = NFTA_IMMEDIATE_DATA(2) }
    Decide<'a> "immediate" { register: u32 = NFTA_IMMEDIATE_DREG(1), verdict: Verdict<'a> = NFTA_IMMEDIATE_DATA(2) }
    /// `[ match name NAME rev REVISION ]`: an xt match, through nft_compat.
    Match<'a> "match" {
        name: Text<'a> = NFTA_XT_NAME(1),
        revision: u32 = NFTA_XT_REV(2),
        info: &'a [u8] = NFTA_XT_INFO(3),
    }
    /// `[ target name NAME rev REVISION ]`: an xt target, through nft_compat.
    Target<'a> "target" {
        name: Text<'a> = NFTA_XT_NAME(1),
        revision: u32 = NFTA_XT_REV(2),
        info: &'a [u8] = NFTA_XT_INFO(3),
    }
    /// `[ bitwise reg TO = ( reg FROM & MASK ) ^ XOR ]`
    Mask<'a> "bitwise" {
        from: u32 = NFTA_BITWISE_SREG(1),
        to: u32 = NFTA_BITWISE_DREG(2),
        length: u32 = NFTA_BITWISE_LEN(3),
        mask: Data<'a> = NFTA_BITWISE_MASK(4),
        xor: Data<'a> = NFTA_BITWISE_XOR(5),
    }
    /// `[ lookup reg REGISTER set SET ]`; of a map, with the register that its value goes to. One of the flags is
    /// `NFT_LOOKUP_F_INV`.
    Lookup<'a> "lookup" {
        set: Text<'a> = NFTA_LOOKUP_SET(1),
        register: u32 = NFTA_LOOKUP_SREG(2),
        to: Option<u32> = NFTA_LOOKUP_DREG(3),
        flags: Option<u32> = NFTA_LOOKUP_FLAGS(5),
    }
    /// `[ redir proto_min reg FIRST proto_max reg LAST ]`
    Redirect "redir" {
        first: Option<u32> = NFTA_REDIR_REG_PROTO_MIN(1),
        last: Option<u32> = NFTA_REDIR_REG_PROTO_MAX(2),
        flags: Option<u32> = NFTA_REDIR_FLAGS(3),
    }
    /// `[ range OPERATION reg REGISTER FIRST LAST ]`; the operation is one of `NFT_RANGE_*`.
    Range<'a> "range" {
        register: u32 = NFTA_RANGE_SREG(1),
        operation: i32 = NFTA_RANGE_OP(2),
        first: Data<'a> = NFTA_RANGE_FROM_DATA(3),
        last: Data<'a> = NFTA_RANGE_TO_DATA(4),
    }
    /// `[ byteorder reg TO = hton(reg FROM) ]`, and others; the operation is one of `NFT_BYTEORDER_*`, for so many numbers
    /// of a size as fit into a length.
    ByteOrder "byteorder" {
        from: u32 = NFTA_BYTEORDER_SREG(1),
        to: u32 = NFTA_BYTEORDER_DREG(2),
        operation: i32 = NFTA_BYTEORDER_OP(3),
        length: u32 = NFTA_BYTEORDER_LEN(4),
        size: u32 = NFTA_BYTEORDER_SIZE(5),
    }
    /// `[ ct load KEY => reg REGISTER ]`; the key is one of `NFT_CT_*`. Of a connection's addresses and ports, those of its
    /// packets of one way (`IP_CT_DIR_*`) are loaded.
    Conntrack "ct" { register: u32 = NFTA_CT_DREG(1), key: i32 = NFTA_CT_KEY(2), way: Option<u8> = NFTA_CT_DIRECTION(3) }
    SetConntrack "ct" { register: u32 = NFTA_CT_SREG(4), key: i32 = NFTA_CT_KEY(2) }
    /// `[ nat dnat ip addr_min reg … proto_min reg … ]`, or `snat` (`NFT_NAT_*`): each with the first and the last. The
    /// family is one of `NFPROTO_*`, as libc has them; of other packets it does nothing.
    Nat "nat" {
        kind: i32 = NFTA_NAT_TYPE(1),
        family: i32 = NFTA_NAT_FAMILY(2),
        first_address: Option<u32> = NFTA_NAT_REG_ADDR_MIN(3),
        last_address: Option<u32> = NFTA_NAT_REG_ADDR_MAX(4),
        first_port: Option<u32> = NFTA_NAT_REG_PROTO_MIN(5),
        last_port: Option<u32> = NFTA_NAT_REG_PROTO_MAX(6),
    }
    /// `[ fib saddr . iif oif => reg REGISTER ]`; the result is one of `NFT_FIB_RESULT_*`, the flags are `NFTA_FIB_F_*`.
    Fib "fib" { register: u32 = NFTA_FIB_DREG(1), result: u32 = NFTA_FIB_RESULT(2), flags: u32 = NFTA_FIB_FLAGS(3) }
    /// `[ limit rate RATE/UNIT … ]`: so many packets, or bytes, in so many seconds.
    Limit "limit" {
        rate: u64 = NFTA_LIMIT_RATE(1),
        seconds: u64 = NFTA_LIMIT_UNIT(2),
        kind: u32 = NFTA_LIMIT_TYPE(4),
        flags: u32 = NFTA_LIMIT_FLAGS(5),
    }
    Quota "quota" { bytes: u64 = NFTA_QUOTA_BYTES(1), flags: u32 = NFTA_QUOTA_FLAGS(2) }
    Connlimit "connlimit" { count: u32 = NFTA_CONNLIMIT_COUNT(1), flags: u32 = NFTA_CONNLIMIT_FLAGS(2) }
    /// `[ dynset OPERATION reg_key REGISTER set SET expr … ]`: adds or updates an element, and asks the expressions that it
    /// has. The operation is one of `NFT_DYNSET_OP_*`; one of the flags is `NFT_DYNSET_F_INV`.
    Dynset<'a> "dynset" {
        set: Text<'a> = NFTA_DYNSET_SET_NAME(1),
        operation: u32 = NFTA_DYNSET_OP(3),
        flags: Option<u32> = NFTA_DYNSET_FLAGS(9),
        expression: Option<&'a [u8]> = NFTA_DYNSET_EXPR(7),
        expressions: Option<&'a [u8]> = NFTA_DYNSET_EXPRESSIONS(10),
    }
    /// `[ tproxy ip port reg PORT ]`
    Tproxy "tproxy" { family: i32 = NFTA_TPROXY_FAMILY(1), port: Option<u32> = NFTA_TPROXY_REG_PORT(3) }
    /// `[ numgen reg REGISTER = random mod MODULUS offset OFFSET ]`
    Numgen "numgen" {
        register: u32 = NFTA_NG_DREG(1),
        modulus: u32 = NFTA_NG_MODULUS(2),
        offset: Option<u32> = NFTA_NG_OFFSET(4),
    }
    /// `[ hash reg REGISTER = jhash(…) % mod MODULUS offset OFFSET ]`
    Hash "hash" {
        register: u32 = NFTA_HASH_DREG(2),
        modulus: u32 = NFTA_HASH_MODULUS(4),
        offset: Option<u32> = NFTA_HASH_OFFSET(6),
    }
    /// `[ reject type KIND code CODE ]`; the kind is one of `NFT_REJECT_*`, the code ICMP's, or one of
    /// `NFT_REJECT_ICMPX_*`.
    Reject "reject" { kind: i32 = NFTA_REJECT_TYPE(1), code: Option<u8> = NFTA_REJECT_ICMP_CODE(2) }
    /// `[ exthdr load … => reg REGISTER ]`: of an extension header, or of a TCP option.
    LoadOption "exthdr" { register: u32 = NFTA_EXTHDR_DREG(1) }
    /// `[ exthdr write … ]`: changes a TCP option, if that is the operation.
    SetOption "exthdr" {
        register: u32 = NFTA_EXTHDR_SREG(7),
        kind: u8 = NFTA_EXTHDR_TYPE(2),
        operation: u32 = NFTA_EXTHDR_OP(6),
    }
    /// `[ objref type TYPE name … ]`; the type is one of `NFT_OBJECT_*`.
    SetObject "objref" { kind: u32 = NFTA_OBJREF_IMM_TYPE(1) }
}

/// A part of an expression, which one attribute has. Reading it is none where the attribute isn't there and has to be.
pub(crate) trait Part<'a>: Copy {
    fn read(data: Attributes<'a>, attribute: u16) -> Result<Option<Self>, Malformed>;
}

impl Part<'_> for u32 {
    fn read(data: Attributes<'_>, attribute: u16) -> Result<Option<Self>, Malformed> {
        data.find(attribute)?.map(be32).transpose()
    }
}

/// A number of one of the kernel's enumerations, as libc has them.
impl Part<'_> for i32 {
    fn read(data: Attributes<'_>, attribute: u16) -> Result<Option<Self>, Malformed> {
        Ok(u32::read(data, attribute)?.map(|number| number as i32))
    }
}

/// A count, which the kernel takes for 0 where it isn't given.
impl Part<'_> for u64 {
    fn read(data: Attributes<'_>, attribute: u16) -> Result<Option<Self>, Malformed> {
        data.find(attribute)?.map_or(Ok(0), be64).map(Some)
    }
}

impl Part<'_> for u8 {
    fn read(data: Attributes<'_>, attribute: u16) -> Result<Option<Self>, Malformed> {
        Ok(data.find(attribute)?.and_then(|bytes| bytes.first().copied()))
    }
}

impl<'a, T: Part<'a>> Part<'a> for Option<T> {
    fn read(data: Attributes<'a>, attribute: u16) -> Result<Option<Self>, Malformed> {
        T::read(data, attribute).map(Some)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Text<'a>(pub(crate) &'a [u8]);

impl<'a> Part<'a> for Text<'a> {
    fn read(data: Attributes<'a>, attribute: u16) -> Result<Option<Self>, Malformed> {
        data.find(attribute)?.map(|text| string(text).map(Self)).transpose()
    }
}

/// The structure of an xt match or target, or a list.
impl<'a> Part<'a> for &'a [u8] {
    fn read(data: Attributes<'a>, attribute: u16) -> Result<Option<Self>, Malformed> {
        data.find(attribute)
    }
}

/// The content of a register, or the value that it is compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Data<'a>(pub(crate) &'a [u8]);

impl<'a> Part<'a> for Data<'a> {
    fn read(data: Attributes<'a>, attribute: u16) -> Result<Option<Self>, Malformed> {
        let data = Attributes(data.find(attribute)?.unwrap_or_default());
        Ok(data.find(NFTA_DATA_VALUE)?.map(Self))
    }
}

/// The fate of a packet: one of `NF_*` or `NFT_*`, and the chain of a jump or a goto.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Verdict<'a> {
    pub(crate) code: i32,
    pub(crate) chain: Option<Text<'a>>,
}

impl<'a> Part<'a> for Verdict<'a> {
    fn read(data: Attributes<'a>, attribute: u16) -> Result<Option<Self>, Malformed> {
        let data = Attributes(data.find(attribute)?.unwrap_or_default());
        let Some(verdict) = data.find(NFTA_DATA_VERDICT)?.map(Attributes) else {
            return Ok(None);
        };
        let code = i32::read(verdict, NFTA_VERDICT_CODE)?.ok_or(Malformed)?;
        Ok(Some(Self { code, chain: Text::read(verdict, NFTA_VERDICT_CHAIN)? }))
    }
}

impl<'a> Expression<'a> {
    /// Those that something else has: one, or a list.
    pub(crate) fn each(one: Option<&'a [u8]>, list: Option<&'a [u8]>) -> impl Iterator<Item = Result<Self, Malformed>> {
        let list = Attributes(list.unwrap_or_default()).map(|element| Ok(element?.1));
        one.map(Ok).into_iter().chain(list).map(|expression| Self::read(Attributes(expression?)))
    }
}

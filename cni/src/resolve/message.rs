//! The two messages of DNS that a lookup takes (RFC 1035, section 4): a question about the addresses of a name, and the
//! answer. What is read may be any bytes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The class of everything here: the Internet.
const CLASS_IN: u16 = 1;

/// The length of a message's header, of the numbers after a question's name, and of those after a record's.
const HEADER: usize = 12;
const QUESTION_REST: usize = 4;
const RECORD_REST: usize = 10;

/// The kind of address that is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// An IPv4 address: a record of type A.
    V4,
    /// An IPv6 address: a record of type AAAA (RFC 3596).
    V6,
}

impl Kind {
    fn number(self) -> u16 {
        match self {
            Kind::V4 => 1,
            Kind::V6 => 28,
        }
    }
}

/// A question, as it is sent.
#[derive(Debug, Clone)]
pub struct Question {
    message: Vec<u8>,
    kind: Kind,
}

/// What a name server says to a question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The name's addresses of this kind; none if it has none, or if there is no such name.
    Addresses(Vec<IpAddr>),
    /// They didn't fit: the question is to be put by TCP.
    Truncated,
    /// The server can't say: its response code, or none if the message makes no sense.
    Failed(Option<u8>),
}

impl Question {
    /// About this name, which is absolute whether or not it ends with a dot; none if DNS can't have such a name.
    pub fn new(id: u16, name: &str, kind: Kind) -> Option<Self> {
        let mut message = Vec::with_capacity(HEADER + name.len() + 2 + QUESTION_REST);
        // Recursion desired; one question.
        let header = [id, 0x0100, 1, 0, 0, 0];
        message.extend(header.into_iter().flat_map(u16::to_be_bytes));
        for label in name.strip_suffix('.').unwrap_or(name).split('.') {
            let length = u8::try_from(label.len())
                .ok()
                .filter(|length| (1..=63).contains(length))?;
            message.push(length);
            message.extend(label.as_bytes());
        }
        message.push(0);
        if message.len() > HEADER + 255 {
            return None;
        }
        message.extend([kind.number(), CLASS_IN].into_iter().flat_map(u16::to_be_bytes));
        Some(Self { message, kind })
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.message
    }

    /// Reads what came back; none if it is no answer to this question, and is to be ignored.
    pub fn answer(&self, message: &[u8]) -> Option<Answer> {
        let (asked, asked_name) = self.message.split_at_checked(HEADER)?;
        let (header, rest) = message.split_at_checked(HEADER)?;
        let (flags, code) = (header.get(2..4)?, *header.get(3)? & 0x0f);
        let is_response = matches!(flags, [high, _] if high & 0xf8 == 0x80);
        if header.get(..2) != asked.get(..2) || !is_response {
            return None;
        }
        // A server that can't read a question may leave it out.
        let Some((question, records)) = rest.split_at_checked(asked_name.len()) else {
            return (code != 0).then_some(Answer::Failed(Some(code)));
        };
        // Letters may come back in another case, and lengths and numbers here are no letters.
        if number(header, 4)? != 1 || !question.eq_ignore_ascii_case(asked_name) {
            return (code != 0 && number(header, 4)? == 0).then_some(Answer::Failed(Some(code)));
        }
        Some(match (code, flags) {
            (0, [high, _]) if high & 0x02 != 0 => Answer::Truncated,
            // Their owners aren't compared: what an alias leads to is in the same answer.
            (0, _) => self
                .addresses(records, number(header, 6)?)
                .map_or(Answer::Failed(None), Answer::Addresses),
            // There is no such name.
            (3, _) => Answer::Addresses(vec![]),
            (code, _) => Answer::Failed(Some(code)),
        })
    }

    /// The addresses in this many records; none if they end early.
    fn addresses(&self, mut records: &[u8], count: u16) -> Option<Vec<IpAddr>> {
        let mut addresses = Vec::new();
        for _ in 0..count {
            let (rest, data) = records.get(name_length(records)?..)?.split_at_checked(RECORD_REST)?;
            let (data, next) = data.split_at_checked(number(rest, 8)?.into())?;
            records = next;
            if (number(rest, 0)?, number(rest, 2)?) == (self.kind.number(), CLASS_IN) {
                addresses.push(match self.kind {
                    Kind::V4 => Ipv4Addr::from(<[u8; 4]>::try_from(data).ok()?).into(),
                    Kind::V6 => Ipv6Addr::from(<[u8; 16]>::try_from(data).ok()?).into(),
                });
            }
        }
        Some(addresses)
    }
}

/// The length of a name, which ends with an empty label or with a pointer to the rest of it.
fn name_length(bytes: &[u8]) -> Option<usize> {
    let mut length = 0;
    loop {
        match *bytes.get(length)? {
            0 => return Some(length + 1),
            label @ 1..=63 => length += usize::from(label) + 1,
            0xc0.. => return Some(length + 2),
            _ => return None,
        }
    }
}

fn number(bytes: &[u8], at: usize) -> Option<u16> {
    let bytes = bytes.get(at..)?.first_chunk()?;
    Some(u16::from_be_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(kind: Kind) -> Question {
        Question::new(0x1234, "Api.example", kind).unwrap()
    }

    /// An answer with these flags and records after the question, which is repeated in lower case.
    fn answer(kind: Kind, flags: u16, records: &[&[u8]]) -> Vec<u8> {
        let mut message = question(kind).bytes().to_ascii_lowercase();
        message[2..4].copy_from_slice(&flags.to_be_bytes());
        message[6..8].copy_from_slice(&u16::try_from(records.len()).unwrap().to_be_bytes());
        message.extend(records.concat());
        message
    }

    fn record(kind: u16, data: &[u8]) -> Vec<u8> {
        let mut record = vec![0xc0, 12];
        record.extend(
            [kind, CLASS_IN, 0, 60, u16::try_from(data.len()).unwrap()]
                .into_iter()
                .flat_map(u16::to_be_bytes),
        );
        record.extend(data);
        record
    }

    /// RFC 1035, sections 4.1.1 and 4.1.2.
    #[test]
    fn a_question_is_written_as_the_standard_has_it() {
        let want = b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x03Api\x07example\x00\x00\x1c\x00\x01";
        assert_eq!(question(Kind::V6).bytes(), want);
        assert_eq!(Question::new(0x1234, "Api.example.", Kind::V6).unwrap().bytes(), want);
        for wrong in ["", ".", "a..b", &"a".repeat(64), &["a"; 128].join(".")] {
            assert!(Question::new(1, wrong, Kind::V4).is_none(), "{wrong}");
        }
        assert!(Question::new(1, &["a"; 127].join("."), Kind::V4).is_some());
    }

    #[test]
    fn addresses_are_read_also_behind_an_alias() {
        let alias = record(5, b"\x01b\xc0\x10");
        let (v4, v6) = (record(1, &[10, 0, 0, 1]), record(28, &Ipv6Addr::LOCALHOST.octets()));
        let read = question(Kind::V4).answer(&answer(Kind::V4, 0x8180, &[&alias, &v4, &v6]));
        assert_eq!(read, Some(Answer::Addresses(vec!["10.0.0.1".parse().unwrap()])));
        let read = question(Kind::V6).answer(&answer(Kind::V6, 0x8180, &[&v6]));
        assert_eq!(read, Some(Answer::Addresses(vec!["::1".parse().unwrap()])));
    }

    #[test]
    fn what_is_no_address_is_told_apart() {
        for (flags, want) in [
            (0x8180, Answer::Addresses(vec![])),
            (0x8183, Answer::Addresses(vec![])),
            (0x8380, Answer::Truncated),
            (0x8182, Answer::Failed(Some(2))),
            (0x8185, Answer::Failed(Some(5))),
        ] {
            let read = question(Kind::V4).answer(&answer(Kind::V4, flags, &[]));
            assert_eq!(read, Some(want), "{flags:x}");
        }
        // Records that end early, or an address of another length.
        let whole = answer(Kind::V4, 0x8180, &[&record(1, &[10, 0, 0, 1])]);
        for end in question(Kind::V4).bytes().len()..whole.len() {
            let read = question(Kind::V4).answer(&whole[..end]);
            assert_eq!(read, Some(Answer::Failed(None)), "{end}");
        }
        let wrong = answer(Kind::V4, 0x8180, &[&record(1, &[10, 0, 0])]);
        assert_eq!(question(Kind::V4).answer(&wrong), Some(Answer::Failed(None)));
        // Without the question, as when the server can't read it.
        let bare = b"\x12\x34\x80\x01\x00\x00\x00\x00\x00\x00\x00\x00";
        assert_eq!(question(Kind::V4).answer(bare), Some(Answer::Failed(Some(1))));
    }

    #[test]
    fn what_answers_another_question_is_ignored() {
        let good = answer(Kind::V4, 0x8180, &[]);
        let mut other_id = good.clone();
        other_id[0] ^= 1;
        let mut query = good.clone();
        query[2] = 1;
        let mut other_name = good.clone();
        other_name[13] = b'x';
        for message in [&b""[..], &good[..11], &good[..20], &other_id, &query, &other_name] {
            assert_eq!(question(Kind::V4).answer(message), None, "{message:?}");
        }
        assert_eq!(question(Kind::V6).answer(&good), None);
    }
}

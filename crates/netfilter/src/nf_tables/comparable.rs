//! A rule's expressions as bytes that can be compared: those that were dumped with those that would be written.
//!
//! The kernel dumps an expression's attributes as they were written, but for this (seen on Linux 6.18), which makes no
//! difference to the form of [`comparable`]:
//! - A lookup has its set before its register, and libnftnl writes them the other way round.
//! - libnftnl marks an attribute that holds others as nested; the kernel doesn't.
//! - A counter has the values that it has reached, and none when it is written.
//! - A redirection has the last port's register too, which is the first one's where only one is given.
//! - A lookup has its flags, and a mask its operation (since Linux 5.6), also where they are 0.
//!
//! An xt extension's structure comes back whole: those of multiport, owner, tcp and REDIRECT have nothing in them that is
//! the kernel's own. A verdict has its chain by name, and a lookup its set, as they are written. Not in the expressions are
//! the comment (`NFTA_RULE_USERDATA`, which comes back as it is) and `NFTA_RULE_COMPAT`, which isn't dumped.

use super::edit::{Edit, Unwritten, batch};
use super::rule::NewRule;
use super::uapi::*;
use crate::netlink::message::{Attributes, Malformed, Messages, string};

/// Before an expression's name, where its attributes have their types.
const NAME: u16 = u16::MAX;

/// The expressions of a rule, the value of `NFTA_RULE_EXPRESSIONS`, in the form in which two rules that do the same, and
/// were written in the same way, are equal.
pub fn comparable(expressions: &[u8]) -> Result<Vec<u8>, Malformed> {
    let mut form = Vec::with_capacity(expressions.len());
    for element in Attributes(expressions) {
        let (_, element) = element?;
        let name = string(Attributes(element).get(NFTA_EXPR_NAME)?)?;
        let data = Attributes(element).find(NFTA_EXPR_DATA)?.unwrap_or_default();
        add(&mut form, NAME, name);
        let mut attributes = Attributes(data).collect::<Result<Vec<_>, _>>()?;
        attributes.sort_by_key(|(kind, _)| *kind);
        for (kind, value) in attributes {
            match (name, kind) {
                (b"counter", _) => {}
                (b"redir", NFTA_REDIR_REG_PROTO_MAX)
                    if Attributes(data).find(NFTA_REDIR_REG_PROTO_MIN)? == Some(value) => {}
                (b"lookup", NFTA_LOOKUP_FLAGS) | (b"bitwise", NFTA_BITWISE_OP) if value == [0; 4] => {}
                (b"immediate", NFTA_IMMEDIATE_DATA) => {
                    for part in Attributes(value) {
                        let (kind, value) = part?;
                        add(&mut form, kind, value);
                    }
                }
                _ => add(&mut form, kind, value),
            }
        }
    }
    Ok(form)
}

/// Adds an attribute: its type without the flags that may be in it, its length, and its value.
fn add(form: &mut Vec<u8>, kind: u16, value: &[u8]) {
    form.extend(kind.to_ne_bytes());
    form.extend((value.len() as u16).to_ne_bytes());
    form.extend(value);
}

/// The expressions of rules as they would be written, those of each in the form of [`comparable`]. The error is the first
/// rule that can't be written.
pub fn written<'a>(rules: impl IntoIterator<Item = NewRule<'a>>) -> Result<Vec<Vec<u8>>, Unwritten> {
    let edits: Vec<_> = rules.into_iter().map(Edit::AddRule).collect();
    let batch = batch(&edits, None)?;
    // The first message begins the batch.
    let messages = Messages(batch.bytes()).skip(1).flatten();
    let forms = messages.map(|message| comparable(message.attributes()?.get(NFTA_RULE_EXPRESSIONS)?));
    // Our own bytes aren't malformed. A malformed rule would stay in its place, and be like no held rule.
    Ok(forms.map(Result::unwrap_or_default).collect())
}

#[cfg(test)]
mod tests {
    use ruleset::testing::{not, ports, to_port};
    use ruleset::{
        Action, Condition, Counters, Family, Field, Hook, NAT, Name, Rule, TCP, TableFamily, Values, addresses,
        interface,
    };

    use super::*;
    use crate::netlink::message::Request;
    use crate::netlink::{Respondent as _, Socket};
    use crate::nf_tables::set::elements;
    use crate::nf_tables::{ChainId, TableId, header};
    use crate::tests::namespace::in_a_namespace;

    /// Every condition and action that the modes write, each in a rule of its own.
    fn rules(family: TableFamily) -> Vec<Rule> {
        let tcp = || Condition::is(Field::Protocol, TCP);
        let listed = |list: &[(u128, u128)]| Condition::is(Field::DestinationPort, Values::Listed(list.to_vec()));
        let mut conditions = vec![
            vec![],
            vec![tcp()],
            vec![Condition::is(Field::Uid, 2102)],
            vec![not(Condition::is(Field::Gid, 7))],
            vec![Condition::is(Field::Uid, (5, 9))],
            vec![Condition::is(Field::OutInterface, interface(b"lo"))],
        ];
        for (of, subnets) in [(Family::V4, ["10.0.0.0/8", "192.0.2.1/32"]), (Family::V6, ["fd00::/9", "::1/128"])] {
            for subnet in subnets.into_iter().filter(|_| family == TableFamily::Ip(of)) {
                let numbers = addresses(subnet.parse().unwrap());
                conditions
                    .extend([Field::Source(of), Field::Destination(of)].map(|of| vec![Condition::is(of, numbers)]));
            }
        }
        match family {
            TableFamily::Ip(_) => conditions.extend([
                vec![tcp(), listed(&[(80, 80), (8000, 8100)])],
                vec![tcp(), to_port(80)],
                vec![tcp(), Condition::is(Field::SourcePort, (1, 9))],
            ]),
            _ => {
                let in_set = Condition::is(Field::DestinationPort, Values::Set(Name::from("web")));
                conditions.extend([
                    vec![Condition::is(Field::Family, 2), tcp(), in_set.clone()],
                    vec![tcp(), not(in_set)],
                    vec![tcp(), not(to_port(80))],
                ]);
            }
        }
        let actions = [Action::Return, Action::Jump(Name::from("other")), Action::Redirect(Some((4143, 4143)))];
        let mut rules = Vec::new();
        for action in actions {
            // REDIRECT asks for the protocol.
            let conditions = conditions
                .iter()
                .filter(|conditions| !matches!(action, Action::Redirect(_)) || conditions.contains(&tcp()));
            rules.extend(conditions.map(|conditions| Rule {
                counters: Some(Counters::default()),
                ..Rule::new(conditions.clone(), action.clone())
            }));
        }
        rules
    }

    #[test]
    fn what_is_dumped_is_what_was_written() {
        in_a_namespace(|| {
            for family in Family::ALL.map(TableFamily::Ip).into_iter().chain([TableFamily::Inet]) {
                let table = TableId { family, name: NAT };
                let chain = ChainId { name: "output", hook: Some(Hook::Output) };
                let sets = [ports("web", &[(80, 80), (90, 90)])];
                let rules = rules(family);
                let new = |rule| NewRule { table, chain, rule, sets: &sets };
                let mut edits = vec![Edit::AddTable(table)];
                edits.push(Edit::AddSet(table, &sets[0], 1));
                edits.push(Edit::AddElements(table, &sets[0], elements(&sets[0])));
                edits.push(Edit::AddChain(table, ChainId { name: "other", hook: None }));
                edits.push(Edit::AddChain(table, chain));
                edits.extend(rules.iter().map(|rule| Edit::AddRule(new(rule))));
                let socket = Socket::open().unwrap();
                let generation = crate::nf_tables::read::generation(&socket).unwrap();
                socket.send_batch(&batch(&edits, Some(generation)).unwrap()).unwrap();
                let mut dumped = Vec::new();
                let (flags, family_number) = (libc::NLM_F_DUMP, header::protocol(family));
                let request =
                    Request::nfnetlink(libc::NFNL_SUBSYS_NFTABLES, libc::NFT_MSG_GETRULE, flags, family_number);
                let asked = socket.ask(request, &mut |message| {
                    dumped.push(comparable(message.attributes()?.get(NFTA_RULE_EXPRESSIONS)?)?);
                    Ok(())
                });
                asked.unwrap();
                let written = written(rules.iter().map(new)).unwrap();
                assert_eq!(dumped.len(), rules.len());
                for ((rule, dumped), written) in rules.iter().zip(dumped).zip(written) {
                    assert_eq!(dumped, written, "{family}: {rule:?}");
                }
            }
        });
    }
}

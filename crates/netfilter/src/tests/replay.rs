//! A batch's messages as the answers to requests, as if the kernel had committed it, for tests without root.

use ruleset::Table;

use crate::netlink::message::{Header, Malformed, Message, Messages, Writer};
use crate::netlink::{FinishedBatch, Generation, ReadError, Respondent};
use crate::nf_tables::edit::{self, Edit};
use crate::nf_tables::read::snapshot;
use crate::nf_tables::uapi::*;
use crate::tests::{attributes_of, is_about};
use ruleset::Numbered;

/// The tables that a namespace holds after these edits.
pub fn replayed(edits: &[Edit<'_>]) -> Vec<Table> {
    let batch = edit::batch(edits, Some(Generation::FRESH)).unwrap();
    snapshot(&Replay(batch), &Numbered::default()).unwrap().tables
}

struct Replay(FinishedBatch);

impl Respondent for Replay {
    fn send_request(
        &self,
        request: Header,
        write: impl FnOnce(&mut Writer),
        mut read: impl FnMut(&Message<'_>) -> Result<(), Malformed>,
    ) -> Result<(), ReadError> {
        let made = match request.message {
            libc::NFT_MSG_GETTABLE => libc::NFT_MSG_NEWTABLE,
            libc::NFT_MSG_GETCHAIN => libc::NFT_MSG_NEWCHAIN,
            libc::NFT_MSG_GETSET => libc::NFT_MSG_NEWSET,
            libc::NFT_MSG_GETSETELEM => libc::NFT_MSG_NEWSETELEM,
            libc::NFT_MSG_GETRULE => libc::NFT_MSG_NEWRULE,
            _ => {
                let mut generation = Writer::default();
                generation.message(request, |to| to.be32(NFTA_GEN_ID, Generation::FRESH.0 + 1));
                let bytes = generation.finish().unwrap();
                return Messages(&bytes).try_for_each(|message| Ok(read(&message?)?));
            }
        };
        let kind = libc::NFNL_SUBSYS_NFTABLES << 8 | made;
        let named = attributes_of(write);
        for message in Messages(self.0.bytes()) {
            let message = message?;
            let is_of_family = [libc::NFPROTO_UNSPEC as u8, message.family()?].contains(&(request.family as u8));
            if i32::from(message.kind) == kind && is_of_family && is_about(&message, &named) {
                // The kernel adds how many objects a table has.
                let mut added = Writer::default();
                if made == libc::NFT_MSG_NEWTABLE {
                    added.be32(NFTA_TABLE_USE, self.objects(&message)?);
                }
                let payload = [message.payload, &added.finish().unwrap()].concat();
                let payload = payload.as_slice();
                read(&Message { payload, ..message })?;
            }
        }
        Ok(())
    }
}

impl Replay {
    /// The number of chains and sets that are made in the table that this message makes.
    fn objects(&self, table: &Message<'_>) -> Result<u32, Malformed> {
        // The table's name is the first attribute of each.
        let name = |message: &Message<'_>| message.attributes()?.get(NFTA_TABLE_NAME).map(<[u8]>::to_vec);
        let made = [libc::NFT_MSG_NEWCHAIN, libc::NFT_MSG_NEWSET].map(|made| libc::NFNL_SUBSYS_NFTABLES << 8 | made);
        let mut objects = 0;
        for message in Messages(self.0.bytes()).flatten().filter(|message| made.contains(&message.kind.into())) {
            objects += u32::from(message.family() == table.family() && name(&message)? == name(table)?);
        }
        Ok(objects)
    }
}

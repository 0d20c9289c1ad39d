//! A batch's messages as the answers to requests, as if the kernel had committed it, for tests without root.

use ruleset::Table;

use crate::netlink::message::{Malformed, Message, Messages, Request};
use crate::netlink::{FinishedBatch, Generation, ReadError, Respondent};
use crate::nf_tables::edit::{self, Edit};
use crate::nf_tables::read::snapshot;
use crate::nf_tables::uapi::*;
use crate::tests::{attributes_of, is_about, message_of};
use ruleset::Numbered;

/// The tables that a namespace holds after these edits.
pub fn replayed(edits: &[Edit<'_>]) -> Vec<Table> {
    let batch = edit::batch(edits, Some(Generation::FRESH)).unwrap();
    snapshot(&Replay(batch), &Numbered::default()).unwrap().tables
}

struct Replay(FinishedBatch);

impl Respondent for Replay {
    fn ask(
        &self,
        request: Request,
        read: &mut dyn FnMut(&Message<'_>) -> Result<(), Malformed>,
    ) -> Result<(), ReadError> {
        let request = request.finish().unwrap();
        let request = Messages(&request).next().unwrap()?;
        let made = match message_of(&request) {
            libc::NFT_MSG_GETTABLE => libc::NFT_MSG_NEWTABLE,
            libc::NFT_MSG_GETCHAIN => libc::NFT_MSG_NEWCHAIN,
            libc::NFT_MSG_GETSET => libc::NFT_MSG_NEWSET,
            libc::NFT_MSG_GETSETELEM => libc::NFT_MSG_NEWSETELEM,
            libc::NFT_MSG_GETRULE => libc::NFT_MSG_NEWRULE,
            _ => {
                let generation = attributes_of(|to| to.be32(NFTA_GEN_ID, Generation::FRESH.0 + 1));
                let payload = [request.payload, &generation].concat();
                return Ok(read(&Message { payload: &payload, ..request })?);
            }
        };
        let kind = libc::NFNL_SUBSYS_NFTABLES << 8 | made;
        for message in Messages(self.0.bytes()) {
            let message = message?;
            let is_of_family = [libc::NFPROTO_UNSPEC as u8, message.family()?].contains(&request.family()?);
            if i32::from(message.kind) == kind && is_of_family && is_about(&message, &request) {
                // The kernel adds how many objects a table has.
                let mut added = Vec::new();
                if made == libc::NFT_MSG_NEWTABLE {
                    let objects = self.objects(&message)?;
                    added = attributes_of(|to| to.be32(NFTA_TABLE_USE, objects));
                }
                let payload = [message.payload, &added].concat();
                read(&Message { payload: &payload, ..message })?;
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

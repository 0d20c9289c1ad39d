//! A ruleset as the kernel once dumped it.

use std::cell::RefCell;
use std::collections::VecDeque;

use crate::netlink::message::{Malformed, Message, Messages, Request};
use crate::netlink::{ReadError, Respondent};
use crate::tests::{is_about, message_of, recorded};

/// The kernel's recorded answers, request by request.
pub(crate) struct Recording(pub(crate) RefCell<VecDeque<(String, Vec<u8>)>>);

impl Recording {
    /// Of these lines, each a request's name and the messages of the answer; others are not for this.
    pub(crate) fn of(text: &str) -> Self {
        let mut answers = VecDeque::new();
        for line in text.lines().filter(|line| line.starts_with("GET")) {
            let (request, answer) = line.split_once(' ').unwrap();
            answers.push_back((request.to_owned(), recorded(&answer.replace(' ', ""))));
        }
        Self(RefCell::new(answers))
    }
}

impl Respondent for Recording {
    fn ask(
        &self,
        request: Request,
        read: &mut dyn FnMut(&Message<'_>) -> Result<(), Malformed>,
    ) -> Result<(), ReadError> {
        let request = request.finish().unwrap();
        let request = Messages(&request).next().unwrap()?;
        let mut answers = self.0.borrow_mut();
        // Not all sets are asked about.
        while let Some((_, answer)) = answers.front()
            && !is_about(&Messages(answer).next().unwrap().unwrap(), &request)
        {
            answers.pop_front();
        }
        let (recorded, answer) = answers.pop_front().unwrap();
        let names = [
            (libc::NFT_MSG_GETGEN, "GETGEN"),
            (libc::NFT_MSG_GETTABLE, "GETTABLE"),
            (libc::NFT_MSG_GETCHAIN, "GETCHAIN"),
            (libc::NFT_MSG_GETSET, "GETSET"),
            (libc::NFT_MSG_GETSETELEM, "GETSETELEM"),
            (libc::NFT_MSG_GETRULE, "GETRULE"),
        ];
        assert!(names.contains(&(message_of(&request), recorded.as_str())), "{recorded}");
        Messages(&answer).try_for_each(|message| Ok(read(&message?)?))
    }
}

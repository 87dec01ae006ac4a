//! The unread notices of a subscription.
use std::collections::VecDeque;

use tokio::sync::Notify;

use crate::{notify::Notice, sync::Mutex};

/// Notices that a connection received and their subscriber has not. It keeps a bounded number of
/// notices and of bytes: beyond either they become one gap.
pub(crate) struct Mailbox {
    unread: Mutex<Unread>,
    arrived: Notify,
    notices: usize,
    bytes: usize,
}

#[derive(Default)]
struct Unread {
    notices: VecDeque<Notice>,
    bytes: usize,
}

impl Mailbox {
    /// Creates an empty mailbox for at most so many notices, and so many bytes.
    pub(crate) fn of(notices: usize, bytes: usize) -> Self {
        Self { unread: Mutex::default(), arrived: Notify::new(), notices, bytes }
    }

    pub(crate) fn put(&self, notice: Notice) {
        let mut unread = self.unread.lock();
        let bytes = size(&notice);
        if unread.notices.len() >= self.notices || unread.bytes + bytes > self.bytes {
            *unread = Unread { notices: VecDeque::from([Notice::Gap]), bytes: 0 };
        }
        // Two gaps in a row tell no more than one.
        if notice != Notice::Gap || unread.notices.back() != Some(&Notice::Gap) {
            unread.bytes += bytes;
            unread.notices.push_back(notice);
        }
        drop(unread);
        self.arrived.notify_one();
    }

    /// Returns the next notice, if there is one.
    pub(crate) fn try_recv(&self) -> Option<Notice> {
        let mut unread = self.unread.lock();
        let notice = unread.notices.pop_front()?;
        unread.bytes -= size(&notice);
        Some(notice)
    }

    /// Waits for the next notice.
    ///
    /// # Cancel safety
    /// Dropping the future loses no notice.
    pub(crate) async fn recv(&self) -> Notice {
        loop {
            if let Some(notice) = self.try_recv() {
                return notice;
            }
            // A notice that arrived since has left a permit.
            self.arrived.notified().await;
        }
    }
}

fn size(notice: &Notice) -> usize {
    match notice {
        Notice::Message(body) => body.len(),
        Notice::Gap => 0,
    }
}

#[cfg(all(test, not(steadfast_loom)))]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn unread(mailbox: &Mailbox) -> Vec<String> {
        let text = |notice| match notice {
            Notice::Message(body) => String::from_utf8_lossy(&body).into_owned(),
            Notice::Gap => "gap".to_owned(),
        };
        std::iter::from_fn(|| mailbox.try_recv()).map(text).collect()
    }

    #[test]
    fn too_many_notices_or_bytes_become_one_gap_before_the_last() {
        let put =
            |mailbox: &Mailbox, body: &'static str| mailbox.put(Notice::Message(Bytes::from_static(body.as_bytes())));
        let mailbox = Mailbox::of(3, 10);
        ["a", "b", "c"].into_iter().for_each(|body| put(&mailbox, body));
        assert_eq!(unread(&mailbox), ["a", "b", "c"]);
        ["a", "b", "c", "d"].into_iter().for_each(|body| put(&mailbox, body));
        assert_eq!(unread(&mailbox), ["gap", "d"]);
        ["123456", "7890", "1"].into_iter().for_each(|body| put(&mailbox, body));
        assert_eq!(unread(&mailbox), ["gap", "1"]);
        mailbox.put(Notice::Gap);
        mailbox.put(Notice::Gap);
        put(&mailbox, "1234567890");
        assert_eq!(unread(&mailbox), ["gap", "1234567890"]);
    }
}

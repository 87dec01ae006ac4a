//! The stored forms of uploads and of the bytes of a tag. Pure.
use std::{collections::BTreeMap, time::Duration};

use bytes::Bytes;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::RejectReason;
use crate::{
    port::{PortError, PortErrorKind},
    record::{Unreadable, check_form},
    time::Timestamp,
};

/// The form of all rows.
const FORM: &str = "upload 1";

/// Most copies of one upload whose requests were not answered.
pub(super) const MAX_COPIES: usize = 100;

/// Most outstanding uploads of one tag: its row has an entry for each.
const MAX_OPEN: usize = 1000;

/// An upload.
///
/// | step | ends by | next |
/// |---|---|---|
/// | open | an accepted copy, a rejection | ended |
/// | ended | `until` has passed, what is not accepted is deleted again, bytes given back | clean |
/// | clean | `until` and the end are `grace` ago, all is deleted again | a row of results alone |
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Upload {
    pub(super) tag: String,
    pub(super) bytes: u64,
    #[serde(rename = "type")]
    pub(super) content_type: String,
    /// Declared SHA-256 in base64url.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) sha256: Option<String>,
    /// End of the URL, in milliseconds since 1970.
    pub(super) until: u64,
    /// Names of all copies that may exist, each recorded before it was made.
    #[serde(default)]
    pub(super) copies: Vec<String>,
    /// Time at which the last copy was recorded, in milliseconds since 1970.
    #[serde(default)]
    pub(super) tried: u64,
    /// All copies are about to be deleted and forgotten.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) is_stale: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) ended: Option<Ended>,
}

/// The end of an upload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Ended {
    pub(super) result: UploadResult,
    /// Time of the end, in milliseconds since 1970.
    pub(super) at: u64,
    /// `true` once other objects of the upload are deleted, its URL has ended, and its bytes are
    /// given back.
    #[serde(default)]
    pub(super) is_clean: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum UploadResult {
    Accepted { copy: String, sha256: String },
    Rejected { reason: RejectReason, detail: String },
}

impl UploadResult {
    pub(super) const fn rejected(reason: RejectReason) -> Self {
        Self::Rejected { reason, detail: String::new() }
    }
}

impl Upload {
    /// Returns the names of the copies that were not accepted.
    pub(super) fn losers(&self) -> impl Iterator<Item = &str> {
        let accepted = match self.ended.as_ref().map(|ended| &ended.result) {
            Some(UploadResult::Accepted { copy, .. }) => Some(copy),
            _ => None,
        };
        self.copies.iter().filter(move |copy| Some(*copy) != accepted).map(String::as_str)
    }

    /// Returns `true` if the URL no longer begins a request. Until then it may write again what was
    /// deleted, and the bytes of that are those that are outstanding.
    pub(super) fn has_url_ended(&self, now: Timestamp) -> bool {
        Timestamp::from_millis(self.until) <= now
    }

    /// Returns `true` if this copy may be accepted: its name is recorded, and is not about to be
    /// forgotten.
    pub(super) fn may_end_by(&self, copy: &str) -> bool {
        !self.is_stale && self.copies.iter().any(|other| other == copy)
    }

    /// Returns the work of a sweep. Of all processes together one tries each upload in a `pause`.
    pub(super) fn due(&self, now: Timestamp, grace: Duration, pause: Duration) -> Due {
        let is_over = |time: u64| Timestamp::from_millis(time) + grace < now;
        let tried = Timestamp::from_millis(self.tried);
        let is_tried = tried <= now && tried + pause > now;
        match &self.ended {
            None if is_tried => Due::Nothing,
            None if is_over(self.until) => Due::Complete,
            Some(Ended { at, .. }) if is_over(self.until) && is_over(*at) => Due::Forget,
            Some(Ended { is_clean: false, .. }) if self.has_url_ended(now) => Due::Clean,
            _ => Due::Nothing,
        }
    }
}

/// The work of a sweep with an upload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Due {
    Nothing,
    /// Nobody reported it: it is completed, or ends.
    Complete,
    Clean,
    /// Deletes a late arrival, and makes its row one of results.
    Forget,
}

/// The uploads of a tag that have not ended, or whose URLs have not, by their ids.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Outstanding {
    pub(super) uploads: BTreeMap<String, Share>,
}

/// The bytes of one upload, and the end of its URL in milliseconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Share {
    pub(super) bytes: u64,
    pub(super) until: u64,
}

impl Outstanding {
    /// Adds an upload, unless there are too many bytes then. Returns `true` if it was added.
    pub(super) fn add(&mut self, id: &str, share: Share, max: u64) -> bool {
        let sum = self.uploads.values().fold(share.bytes, |sum, one| sum.saturating_add(one.bytes));
        let fits = sum <= max && self.uploads.len() < MAX_OPEN;
        if fits {
            self.uploads.insert(id.to_owned(), share);
        }
        fits
    }

    /// Returns the time at which the first upload has ended at the latest.
    pub(super) fn first_end(&self, grace: Duration) -> Option<Timestamp> {
        self.uploads.values().map(|share| Timestamp::from_millis(share.until) + grace).min()
    }

    /// Returns the ids of uploads whose time is over.
    pub(super) fn overdue(&self, now: Timestamp, grace: Duration) -> Vec<String> {
        let is_over = |share: &Share| Timestamp::from_millis(share.until) + grace < now;
        self.uploads.iter().filter(|(_, share)| is_over(share)).map(|(id, _)| id.clone()).collect()
    }
}

/// Returns the row as bytes.
pub(super) fn encode(row: &impl Serialize) -> Bytes {
    let mut bytes = format!("{FORM}\n").into_bytes();
    // These types have text for keys, so they always have a form in JSON.
    let _ = serde_json::to_writer(&mut bytes, row);
    bytes.into()
}

/// Reads a row.
pub(super) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, PortError> {
    let corrupt = || PortError::new(PortErrorKind::Corrupt, "the row of an upload is malformed");
    let text = std::str::from_utf8(bytes).map_err(|_| corrupt())?;
    let (form, json) = text.split_once('\n').ok_or_else(corrupt)?;
    check_form(FORM, form).map_err(|reason| match reason {
        Unreadable::TooNew => {
            PortError::new(PortErrorKind::TooNew, "the row of an upload was written by a newer release")
        }
        Unreadable::Foreign => corrupt(),
    })?;
    serde_json::from_str(json).map_err(|_| corrupt())
}

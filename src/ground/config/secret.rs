//! A secret setting, which no log and no document shows.
use std::{fmt, hint::black_box};

use serde::{Deserialize, Serialize, Serializer};

/// Text in place of a secret.
const SHOWN: &str = "***";

/// A secret text. `Debug` and serde write `***` in its place, which is refused where a secret is
/// read, and it is compared in a time that depends on its length alone.
///
/// ```
/// use steadfast::config::Secret;
///
/// let secret = Secret::new("open sesame");
/// assert_eq!(format!("{secret:?}"), "***");
/// assert!(secret.is("open sesame") && !secret.is("open barley"));
/// ```
#[derive(Clone, Deserialize)]
#[serde(try_from = "String")]
pub struct Secret(Box<str>);

impl Secret {
    /// Creates a secret from its text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into().into_boxed_str())
    }

    /// Returns `true` if the text is the secret.
    pub fn is(&self, text: &str) -> bool {
        let (ours, theirs) = (self.0.as_bytes(), text.as_bytes());
        // No early return at the first byte that differs, and none that the compiler adds.
        let differ = |differ: u8, (a, b): (&u8, &u8)| black_box(differ | (a ^ b));
        ours.len() == theirs.len() && ours.iter().zip(theirs).fold(0, differ) == 0
    }

    /// Returns `true` if it has visible ASCII characters alone, and at least one.
    pub(crate) fn is_visible(&self) -> bool {
        !self.0.is_empty() && self.0.bytes().all(|byte| byte.is_ascii_graphic())
    }
}

impl TryFrom<String> for Secret {
    type Error = &'static str;

    /// Refuses what a secret is shown as: a document that was written has lost its secrets.
    fn try_from(text: String) -> Result<Self, Self::Error> {
        if text == SHOWN { Err("`***` stands for a secret, and is none") } else { Ok(Self::new(text)) }
    }
}

impl PartialEq for Secret {
    fn eq(&self, other: &Self) -> bool {
        self.is(&other.0)
    }
}

impl Eq for Secret {}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(SHOWN)
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(SHOWN)
    }
}

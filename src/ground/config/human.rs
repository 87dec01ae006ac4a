//! Durations as text: `"250ms"`, `"1h 30m"`; for `#[serde(with = "steadfast::config::human")]`.
//!
//! A duration that is written and read back is equal to the nanosecond. A number without a unit is
//! refused.
use std::{fmt, time::Duration};

use serde::{Deserializer, Serializer, de};

/// Serializes a duration as text: `1h 30m`.
pub fn serialize<S: Serializer>(d: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(&humantime::format_duration(*d))
}

/// Deserializes a duration from text.
pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    from.deserialize_str(Text)
}

/// Optional durations as text, for `Option<Duration>`; combine it with `#[serde(default)]`.
pub mod option {
    use super::{Deserializer, Duration, Serializer, Text};

    /// Serializes a duration as text, or `None`.
    pub fn serialize<S: Serializer>(d: &Option<Duration>, to: S) -> Result<S::Ok, S::Error> {
        match d {
            Some(d) => to.serialize_some(&humantime::format_duration(*d).to_string()),
            None => to.serialize_none(),
        }
    }

    /// Deserializes an optional duration from text.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
        from.deserialize_option(OptionalText)
    }

    struct OptionalText;

    impl<'de> serde::de::Visitor<'de> for OptionalText {
        type Value = Option<Duration>;
        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            serde::de::Visitor::expecting(&Text, f)
        }
        fn visit_none<E>(self) -> Result<Self::Value, E> {
            Ok(None)
        }
        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok(None)
        }
        fn visit_some<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
            from.deserialize_str(Text).map(Some)
        }
    }
}

struct Text;

impl de::Visitor<'_> for Text {
    type Value = Duration;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a duration with its unit, such as \"250ms\" or \"1h 30m\"")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Duration, E> {
        parse(text)
    }
}

pub(crate) fn parse<E: de::Error>(text: &str) -> Result<Duration, E> {
    humantime::parse_duration(text)
        .map_err(|e| E::custom(format_args!("`{text}` is not a duration such as \"250ms\" or \"1h 30m\": {e}")))
}

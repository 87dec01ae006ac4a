//! Delivery requests: parsing, and errors by field and rule.
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

/// The data of a valid request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Request {
    pub id: Uuid,
    pub owner: String,
    pub pickup: Place,
    pub dropoff: Place,
    pub deadline: jiff::Timestamp,
    pub expedited: bool,
    pub confirmation: Confirmation,
    pub package: Package,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Place {
    pub city: String,
    pub latitude: f64,
    pub longitude: f64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Package {
    pub id: String,
    pub size: Size,
    pub weight: f64,
    pub tag: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Size {
    Small,
    Medium,
    Large,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Confirmation {
    None,
    FingerPrint,
    Picture,
    Voice,
    Signature,
}

/// The reason for which a line is invalid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Invalid {
    /// The line is incomplete.
    TooLong,
    /// The line is not a JSON object.
    NotJson(String),
    /// A field violates a rule.
    Field { field: String, rule: &'static str },
}

impl Invalid {
    /// Returns the reason without the details of the line.
    pub fn rule(&self) -> String {
        match self {
            Self::NotJson(_) => "not JSON".into(),
            other => other.to_string(),
        }
    }
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong => f.write_str("longer than 1 MiB"),
            Self::NotJson(why) => write!(f, "not JSON: {why}"),
            Self::Field { field, rule } => write!(f, "`{field}` {rule}"),
        }
    }
}

impl Request {
    /// Returns `true` if the package must change cities, which needs a third party.
    pub fn needs_transport(&self) -> bool {
        self.pickup.city != self.dropoff.city
    }

    /// Returns the request under new ids, for repetition `n` of the input.
    #[must_use]
    pub fn repeated(&self, n: u64) -> Self {
        let mut copy = self.clone();
        if n > 0 {
            copy.id = self.repeated_id(n);
            copy.package.id = format!("{}-{n}", copy.package.id);
        }
        copy
    }

    /// Returns the id of repetition `n`. It depends on the request only: a duplicate remains one within its repetition.
    pub fn repeated_id(&self, n: u64) -> Uuid {
        let (high, low) = self.id.as_u64_pair();
        Uuid::from_u64_pair(high, low ^ n.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// Reads one line.
    pub fn parse(line: &[u8]) -> Result<Self, Invalid> {
        let document: Value = serde_json::from_slice(line).map_err(|e| Invalid::NotJson(e.to_string()))?;
        if !document.is_object() {
            return Err(Invalid::NotJson("not an object".into()));
        }
        let root = Fields { at: String::new(), value: &document };
        let package = root.section("packageInfo")?;
        let id = root.text("deliveryId")?;
        let weight = package.number("weight")?;
        package.require(weight > 0.0 && weight < 25.0, "weight", "must be above 0 and below 25 kg")?;
        Ok(Self {
            id: Uuid::try_parse(id).map_err(|_| root.broken("deliveryId", "must be a UUID"))?,
            owner: root.name("ownerId")?.to_owned(),
            pickup: root.place("pickupLocation")?,
            dropoff: root.place("dropoffLocation")?,
            deadline: root.time("deadline")?,
            expedited: match root.value.get("expedited") {
                Some(Value::Bool(yes)) => *yes,
                _ => return Err(root.broken("expedited", "must be true or false")),
            },
            confirmation: root
                .one_of("confirmationRequired", "must be one of None, FingerPrint, Picture, Voice, Signature")?,
            package: Package {
                id: package.name("packageId")?.to_owned(),
                size: package.one_of("size", "must be one of Small, Medium, Large")?,
                weight,
                tag: package.text("tag")?.to_owned(),
            },
        })
    }
}

/// The fields of one object of the document, with its path.
struct Fields<'a> {
    at: String,
    value: &'a Value,
}

impl<'a> Fields<'a> {
    fn broken(&self, field: &str, rule: &'static str) -> Invalid {
        Invalid::Field { field: format!("{}{field}", self.at), rule }
    }

    fn require(&self, holds: bool, field: &str, rule: &'static str) -> Result<(), Invalid> {
        if holds { Ok(()) } else { Err(self.broken(field, rule)) }
    }

    fn section(&self, field: &str) -> Result<Fields<'a>, Invalid> {
        match self.value.get(field) {
            Some(value @ Value::Object(_)) => Ok(Fields { at: format!("{}{field}.", self.at), value }),
            _ => Err(self.broken(field, "must be an object")),
        }
    }

    fn text(&self, field: &str) -> Result<&'a str, Invalid> {
        match self.value.get(field) {
            Some(Value::String(text)) if !text.is_empty() => Ok(text),
            None | Some(Value::Null) => Err(self.broken(field, "is missing")),
            _ => Err(self.broken(field, "must be a text that is not empty")),
        }
    }

    /// Reads a text that is safe in a URL path.
    fn name(&self, field: &str) -> Result<&'a str, Invalid> {
        let name = self.text(field)?;
        let plain = name.len() <= 128 && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
        self.require(plain, field, "must be letters, digits, `-` and `_`, at most 128")?;
        Ok(name)
    }

    fn time(&self, field: &str) -> Result<jiff::Timestamp, Invalid> {
        let text = self.text(field)?;
        // jiff reads more than RFC 3339 allows: hours alone, a time zone's name in brackets.
        let strict = matches!(text.as_bytes(), [.., b'Z' | b'z'] | [.., b'+' | b'-', _, _, b':', _, _])
            && text.as_bytes().get(16) == Some(&b':');
        let time = if strict { text.parse().ok() } else { None };
        time.ok_or_else(|| self.broken(field, "must be an RFC 3339 time stamp"))
    }

    fn number(&self, field: &str) -> Result<f64, Invalid> {
        self.value.get(field).and_then(Value::as_f64).ok_or_else(|| self.broken(field, "must be a number"))
    }

    fn one_of<T: Deserialize<'a>>(&self, field: &str, rule: &'static str) -> Result<T, Invalid> {
        self.value.get(field).and_then(|v| T::deserialize(v).ok()).ok_or_else(|| self.broken(field, rule))
    }

    fn place(&self, field: &str) -> Result<Place, Invalid> {
        let place = self.section(field)?;
        let (latitude, longitude) = (place.number("latitude")?, place.number("longitude")?);
        place.require((-90.0..=90.0).contains(&latitude), "latitude", "must lie between -90 and 90 degrees")?;
        place.require((-180.0..=180.0).contains(&longitude), "longitude", "must lie between -180 and 180 degrees")?;
        Ok(Place { city: place.text("city")?.to_owned(), latitude, longitude })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn valid() -> Value {
        serde_json::json!({
            "deliveryId": "2399d29d-b61e-4ba5-b682-4dd6b80469b8", "ownerId": "tenant-0474",
            "pickupLocation": { "city": "Kyiv", "latitude": 50.2, "longitude": 30.4 },
            "dropoffLocation": { "city": "Kyiv", "latitude": 50.3, "longitude": 30.5 },
            "deadline": "2026-12-15T11:54:00Z", "expedited": false, "confirmationRequired": "Picture",
            "packageInfo": { "packageId": "pkg-1", "size": "Small", "weight": 1.5, "tag": "books" }
        })
    }

    fn refusal(change: impl FnOnce(&mut Value)) -> String {
        let mut document = valid();
        change(&mut document);
        Request::parse(document.to_string().as_bytes()).unwrap_err().to_string()
    }

    #[test]
    fn a_valid_request_is_read() {
        let request = Request::parse(valid().to_string().as_bytes()).unwrap();
        assert_eq!(request.owner, "tenant-0474");
        assert!(!request.needs_transport());
    }

    #[test]
    fn each_wrong_field_is_refused_by_name_and_rule() {
        assert_eq!(refusal(|d| d["deliveryId"] = "../../etc/passwd".into()), "`deliveryId` must be a UUID");
        assert_eq!(refusal(|d| d["ownerId"] = Value::Null), "`ownerId` is missing");
        assert!(refusal(|d| d["ownerId"] = "../x".into()).starts_with("`ownerId` must be letters"));
        for deadline in ["tomorrow", "2026-12-15", "2026-12-15T11Z", "2026-12-15T11:54:00", "2026-12-15T11:54:00Z[UTC]"]
        {
            assert_eq!(refusal(|d| d["deadline"] = deadline.into()), "`deadline` must be an RFC 3339 time stamp");
        }
        assert_eq!(refusal(|d| d["expedited"] = "yes".into()), "`expedited` must be true or false");
        assert!(
            refusal(|d| d["confirmationRequired"] = "Wink".into()).starts_with("`confirmationRequired` must be one of")
        );
        assert!(
            refusal(|d| d["packageInfo"]["size"] = "Gigantic".into()).starts_with("`packageInfo.size` must be one of")
        );
        for weight in [0.0, -1.0, 25.0] {
            assert!(
                refusal(|d| d["packageInfo"]["weight"] = weight.into())
                    .starts_with("`packageInfo.weight` must be above")
            );
        }
        assert!(
            refusal(|d| d["pickupLocation"]["latitude"] = 123.4.into())
                .starts_with("`pickupLocation.latitude` must lie")
        );
        assert!(
            refusal(|d| d["dropoffLocation"]["longitude"] = 181.into())
                .starts_with("`dropoffLocation.longitude` must lie")
        );
        assert_eq!(refusal(|d| d["packageInfo"] = 1.into()), "`packageInfo` must be an object");
    }

    #[test]
    fn every_form_of_rfc_3339_is_read() {
        for deadline in ["2026-12-15T11:54:00Z", "2026-12-15T11:54:00.125Z", "2026-12-15T13:54:00+02:00"] {
            let mut document = valid();
            document["deadline"] = deadline.into();
            assert!(Request::parse(document.to_string().as_bytes()).is_ok(), "{deadline}");
        }
    }

    #[test]
    fn hostile_lines_are_refused_not_fatal() {
        let deep = "[".repeat(200_000);
        for line in [&b"\xff\xfe"[..], b"{", b"null", b"[]", b"\"x\"", deep.as_bytes()] {
            assert!(matches!(Request::parse(line), Err(Invalid::NotJson(_))));
        }
    }

    #[test]
    fn a_repetition_keeps_duplicates_and_makes_new_ids() {
        let request = Request::parse(valid().to_string().as_bytes()).unwrap();
        assert_eq!(request.repeated(0), request);
        assert_ne!(request.repeated(1).id, request.id);
        assert_ne!(request.repeated(1).package.id, request.package.id);
        assert_eq!(request.repeated(2), request.repeated(2));
    }
}

//! Keys as their issuer publishes them: a set in JSON.
use serde::Deserialize;

use super::{
    Algorithm,
    crypto::{KeyType, VerifyKey, from_base64},
};

/// A key of an issuer.
#[derive(Debug, Clone)]
pub(crate) struct PublishedKey {
    pub(crate) kid: Option<String>,
    /// The algorithms for which its issuer publishes it; none if it does not say so.
    algorithms: Vec<Algorithm>,
    pub(crate) key: VerifyKey,
}

impl PublishedKey {
    /// Returns `true` if tokens of this algorithm may be signed by this key.
    pub(crate) fn fits(&self, algorithm: Algorithm) -> bool {
        algorithm.key_type() == self.key.key_type()
            && (self.algorithms.is_empty() || self.algorithms.contains(&algorithm))
    }
}

/// The usable keys of a set, and the number of those that were left out.
#[derive(Debug)]
pub(crate) struct KeySet {
    pub(crate) keys: Vec<PublishedKey>,
    pub(crate) left_out: usize,
}

/// Reason for which a set as a whole is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BadSet {
    Unparsable,
    TooManyKeys,
    NoKey,
}

#[derive(Deserialize)]
struct Set {
    keys: Vec<serde_json::Value>,
}

#[derive(Deserialize)]
struct Member {
    kty: String,
    kid: Option<String>,
    alg: Option<String>,
    #[serde(rename = "use")]
    usage: Option<String>,
    key_ops: Option<Vec<String>>,
    crv: Option<String>,
    x: Option<String>,
    y: Option<String>,
    n: Option<String>,
    e: Option<String>,
    d: Option<serde::de::IgnoredAny>,
}

/// The members that make a key, whatever it is for.
type Material = [Option<String>; 5];

impl Member {
    /// Returns the key, or `None` if it is not one for signatures that are accepted here.
    fn key(self) -> Option<(PublishedKey, Material)> {
        let bytes = |text: &Option<String>| from_base64(text.as_deref()?);
        let is_for_signatures = self.usage.as_deref().is_none_or(|usage| usage == "sig")
            && self.key_ops.as_ref().is_none_or(|uses| uses.iter().any(|one| one == "verify"));
        // A private half that was published is known to everybody.
        if !is_for_signatures || self.d.is_some() {
            return None;
        }
        let key = match (self.kty.as_str(), self.crv.as_deref()) {
            ("RSA", _) => VerifyKey::rsa(&bytes(&self.n)?, &bytes(&self.e)?)?,
            ("EC", Some("P-256")) => VerifyKey::ecdsa(KeyType::P256, &bytes(&self.x)?, &bytes(&self.y)?)?,
            ("EC", Some("P-384")) => VerifyKey::ecdsa(KeyType::P384, &bytes(&self.x)?, &bytes(&self.y)?)?,
            ("OKP", Some("Ed25519")) => VerifyKey::ed25519(&bytes(&self.x)?)?,
            _ => return None,
        };
        let algorithm = match self.alg.as_deref() {
            Some(name) => Some(Algorithm::from_name(name).filter(|one| one.key_type() == key.key_type())?),
            None => None,
        };
        let algorithms = algorithm.into_iter().collect();
        Some((PublishedKey { kid: self.kid, algorithms, key }, [self.crv, self.x, self.y, self.n, self.e]))
    }
}

impl KeySet {
    /// Reads a set of at most `max` keys. Of two different keys with one id neither is used. One
    /// that is listed again, for example for another algorithm, is one key.
    pub(crate) fn read(json: &[u8], max: usize) -> Result<Self, BadSet> {
        let Set { keys: members } = super::object(json).map_err(|_| BadSet::Unparsable)?;
        if members.len() > max {
            return Err(BadSet::TooManyKeys);
        }
        let all = members.len();
        let read =
            |member: serde_json::Value| member.is_object().then(|| serde_json::from_value::<Member>(member).ok())?;
        let usable: Vec<_> = members.into_iter().filter_map(|member| read(member)?.key()).collect();
        let mut found: Vec<(PublishedKey, &Material)> = Vec::new();
        let mut used = 0;
        for (key, material) in &usable {
            let differs = |(other, its): &(PublishedKey, Material)| other.kid == key.kid && its != material;
            if key.kid.is_some() && usable.iter().any(differs) {
                continue;
            }
            used += 1;
            match found.iter_mut().find(|(known, its)| known.kid == key.kid && *its == material) {
                // Without an algorithm it is for all of them.
                Some((known, _)) if known.algorithms.is_empty() || key.algorithms.is_empty() => {
                    known.algorithms.clear()
                }
                Some((known, _)) => known.algorithms.extend(&key.algorithms),
                None => found.push((key.clone(), material)),
            }
        }
        let keys: Vec<_> = found.into_iter().map(|(key, _)| key).collect();
        if keys.is_empty() { Err(BadSet::NoKey) } else { Ok(Self { left_out: all - used, keys }) }
    }
}

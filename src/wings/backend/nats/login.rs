//! The identification of a handle, as the client sends it.
use std::{future::ready, sync::Arc};

use async_nats::{Auth, AuthError, ConnectOptions};
use nkeys::KeyPair;

use super::config::{Login, NatsConfig, Target};
use crate::{backend::common::settings::text_or_file, config::ConfigError};

/// Returns the client's options with this identification.
pub(super) fn identified(config: &NatsConfig, target: &Target) -> Result<ConnectOptions, ConfigError> {
    let options = ConnectOptions::new();
    Ok(match target.login.clone() {
        Login::None => options,
        Login::Token(token) => options.token(token),
        Login::User(user, password) => options.user_and_password(user, password),
        Login::Credentials | Login::Nkey => {
            let keys = Keys { credentials: config.credentials.clone(), nkey: config.nkey.clone() };
            // What is wrong is told now, and by name.
            keys.read()?;
            let keys = Arc::new(keys);
            // A file may be replaced: it is read at each connection.
            ConnectOptions::with_auth_callback(move |nonce| ready(keys.sign(&nonce)))
        }
    })
}

/// The settings that name keys.
struct Keys {
    credentials: Option<String>,
    nkey: Option<String>,
}

impl Keys {
    /// Returns the JWT, if there is one, and the keys.
    fn read(&self) -> Result<(Option<String>, KeyPair), ConfigError> {
        match (&self.credentials, &self.nkey) {
            (Some(credentials), _) => {
                const RULE: &str = "must be a credentials file, with a user's JWT and its seed";
                let text = text("credentials", credentials, credentials.contains("-----BEGIN"))?;
                let mut parts = text.split("-----BEGIN ").skip(1).filter_map(block);
                let (jwt, seed) = (parts.next(), parts.next());
                let rule = || ConfigError::new("credentials", RULE);
                let keys = KeyPair::from_seed(seed.ok_or_else(rule)?).map_err(|_| rule())?;
                Ok((Some(jwt.ok_or_else(rule)?.to_owned()), keys))
            }
            (None, nkey) => {
                let nkey = nkey.as_deref().unwrap_or_default();
                let text = text("nkey", nkey, nkey.starts_with("SU") && nkey.len() == 58)?;
                let rule = |_| ConfigError::new("nkey", "must be the seed of a user's NKey, which begins with `SU`");
                Ok((None, KeyPair::from_seed(text.trim()).map_err(rule)?))
            }
        }
    }

    fn sign(&self, nonce: &[u8]) -> Result<Auth, AuthError> {
        let (jwt, keys) = self.read().map_err(AuthError::new)?;
        let mut auth = Auth::new();
        auth.signature = Some(keys.sign(nonce).map_err(|_| AuthError::new("the key cannot sign"))?);
        // With a JWT the key is in it.
        auth.nkey = jwt.is_none().then(|| keys.public_key());
        auth.jwt = jwt;
        Ok(auth)
    }
}

/// Returns the line between the marks around a part of a credentials file.
fn block(part: &str) -> Option<&str> {
    let line = part.lines().map(str::trim).nth(1)?;
    (!line.is_empty() && !line.starts_with('-')).then_some(line)
}

fn text(field: &'static str, source: &str, is_text: bool) -> Result<String, ConfigError> {
    let read = text_or_file(field, source, is_text)?;
    String::from_utf8(read).map_err(|_| ConfigError::new(field, "must be a text in UTF-8"))
}

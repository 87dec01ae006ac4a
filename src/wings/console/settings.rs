//! The settings of a component in use: shown, compared with those that an operator wants, and
//! replaced.
use std::{collections::BTreeMap, marker::PhantomData};

use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use super::{
    document,
    readout::{Note, ReadOut, Table},
};
use crate::{
    config::{Effect, Reconfigure},
    sha256::{base64, sha256},
};

/// The action that replaces settings.
pub(super) const ACTION: &str = "settings";

/// The settings of a component, whatever their type is.
pub(super) trait Settings {
    /// Returns the settings in effect. Secrets are not among them.
    fn now(&self) -> Value;

    /// Returns the settings as the component would have them, if they are valid and can change in
    /// use.
    fn check(&self, next: Value) -> Result<Value, String>;

    /// Replaces the settings.
    fn apply(&self, next: Value) -> Result<(), String>;
}

/// The settings of type `C` of a component that can be reconfigured.
pub(super) struct Of<'a, R: ?Sized, C>(&'a R, PhantomData<fn() -> C>);

/// Returns the settings of a component that can be reconfigured.
pub(super) fn of<'a, C, R>(component: &'a R) -> Option<Box<dyn Settings + 'a>>
where
    R: Reconfigure<C> + ?Sized,
    C: Serialize + DeserializeOwned + 'a,
{
    Some(Box::new(Of(component, PhantomData::<fn() -> C>)))
}

impl<R: Reconfigure<C> + ?Sized, C: Serialize + DeserializeOwned> Settings for Of<'_, R, C> {
    fn now(&self) -> Value {
        serde_json::to_value(self.0.config()).unwrap_or_default()
    }

    fn check(&self, next: Value) -> Result<Value, String> {
        let next: C = serde_json::from_value(next).map_err(|error| error.to_string())?;
        match self.0.validate(&next).map_err(|error| error.to_string())? {
            Effect::Restart(error) => Err(error.to_string()),
            Effect::Unchanged | Effect::InPlace => serde_json::to_value(next).map_err(|error| error.to_string()),
        }
    }

    fn apply(&self, next: Value) -> Result<(), String> {
        let next: C = serde_json::from_value(next).map_err(|error| error.to_string())?;
        self.0.apply(next).map_err(|error| error.to_string())
    }
}

/// A setting that changes: its name, its value in effect, and the next one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) name: String,
    pub(super) now: String,
    pub(super) next: String,
}

/// Adds the settings in effect, and the action that replaces them.
pub(super) fn offer(out: ReadOut, settings: &dyn Settings) -> ReadOut {
    let now = settings.now();
    let mut table = Table::new("Settings", &["setting", "value"]);
    for (name, value) in document::leaves(&now) {
        let value = value.as_str().map_or_else(|| document::inline(value), str::to_owned);
        table.push([name, value]);
    }
    let version = base64(&sha256(now.to_string().as_bytes()));
    let effect = "Replaces settings of this process while it is in use, until it restarts or gets others: no document is \
        changed, and no other process. They are checked, and the difference is shown, before anything changes. A setting \
        that is none has no line; one whose line you delete gets its default.";
    let mut out = out.table(table).action(ACTION, "Change settings", effect, version, Note::Settings);
    if let Some(action) = out.actions.last_mut() {
        action.text = document::write(&now);
    }
    out
}

/// Returns what would change by this text, if the settings are valid.
pub(super) fn review(settings: &dyn Settings, text: &str) -> Result<Vec<Change>, String> {
    Ok(read(settings, text)?.1)
}

/// Replaces the settings by this text.
pub(super) fn apply(settings: &dyn Settings, text: &str) -> Result<String, String> {
    let (next, changes) = read(settings, text)?;
    settings.apply(next)?;
    Ok(format!("Settings changed: {}.", words(&changes)))
}

/// Compares settings.
fn changes(now: &Value, next: &Value) -> Vec<Change> {
    let (now, next) = (values(now), values(next));
    let name = |(name, _): (&String, &String)| name.clone();
    let names: std::collections::BTreeSet<_> = now.iter().chain(&next).map(name).collect();
    let none = || "none".to_owned();
    let change = |name: String| {
        let (now, next) = (now.get(&name).cloned().unwrap_or_else(none), next.get(&name).cloned().unwrap_or_else(none));
        (now != next).then_some(Change { name, now, next })
    };
    names.into_iter().filter_map(change).collect()
}

/// Returns changes in one line, for events and results.
pub(super) fn words(changes: &[Change]) -> String {
    let words = |Change { name, now, next }: &Change| format!("{name} from {now} to {next}");
    if changes.is_empty() { "none".to_owned() } else { changes.iter().map(words).collect::<Vec<_>>().join(", ") }
}

fn values(settings: &Value) -> BTreeMap<String, String> {
    document::leaves(settings).into_iter().map(|(name, value)| (name, document::inline(value))).collect()
}

/// Reads a document, and returns its settings with what they change. What is none now, and has no
/// line, stays none.
fn read(settings: &dyn Settings, text: &str) -> Result<(Value, Vec<Change>), String> {
    let (now, mut next) = (settings.now(), document::read(text)?);
    keep_none(&now, &mut next);
    match settings.check(next.clone()) {
        Ok(checked) => Ok((next, changes(&now, &checked))),
        Err(why) => Err(with_name(settings, &next, why)),
    }
}

/// Adds the name of the setting to an error of serde: without that one the others are valid.
fn with_name(settings: &dyn Settings, next: &Value, why: String) -> String {
    let is_wrong = |name: &str| without(next.clone(), name).is_some_and(|rest| settings.check(rest).is_ok());
    let wrong = document::leaves(next).into_iter().map(|(name, _)| name).find(|name| is_wrong(name));
    match wrong {
        Some(name) if !why.starts_with("invalid `") && !why.contains(&format!("`{name}`")) => {
            format!("`{name}`: {why}")
        }
        _ => why,
    }
}

fn keep_none(now: &Value, next: &mut Value) {
    let (Value::Object(now), Value::Object(next)) = (now, next) else { return };
    for (name, value) in now {
        match (value, next.get_mut(name)) {
            (Value::Null, None) => drop(next.insert(name.clone(), Value::Null)),
            (value, Some(next)) => keep_none(value, next),
            _ => {}
        }
    }
}

/// Returns settings without one; `None` if a part of its name is in quotes.
fn without(mut settings: Value, name: &str) -> Option<Value> {
    if name.contains('"') {
        return None;
    }
    let (path, last) = name.rsplit_once('.').map_or((None, name), |(path, last)| (Some(path), last));
    let mut parts = path.into_iter().flat_map(|path| path.split('.'));
    let table = parts.try_fold(&mut settings, |table, part| table.get_mut(part))?;
    table.as_object_mut()?.remove(last)?;
    Some(settings)
}

#[cfg(all(test, not(steadfast_loom)))]
mod tests {
    use serde::Deserialize;

    use super::*;
    use crate::{
        config::{ConfigError, Secret, require},
        sync::Mutex,
    };

    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    struct Keyed {
        key: Secret,
        rate: Option<f64>,
        most: u32,
    }

    impl Default for Keyed {
        fn default() -> Self {
            Self { key: Secret::new("open sesame"), rate: Some(0.5), most: 3 }
        }
    }

    struct Part(Mutex<Keyed>);

    impl Reconfigure<Keyed> for Part {
        fn config(&self) -> Keyed {
            self.0.lock().clone()
        }
        fn validate(&self, next: &Keyed) -> Result<Effect, ConfigError> {
            require(next.most > 0, "most", "must be at least 1")?;
            Ok(Effect::of_change(&self.config(), next))
        }
        fn apply(&self, next: Keyed) -> Result<(), ConfigError> {
            self.validate(&next)?;
            *self.0.lock() = next;
            Ok(())
        }
    }

    #[test]
    fn a_secret_is_neither_written_nor_kept_nor_told() {
        let part = Part(Mutex::new(Keyed::default()));
        let settings = of::<Keyed, _>(&part).unwrap();
        let text = document::write(&settings.now());
        assert_eq!(text, "key = \"***\"\nmost = 3\nrate = 0.5\n");
        // What is shown in its place is none.
        let why = review(&*settings, &text).unwrap_err();
        assert_eq!(why, "`key`: `***` stands for a secret, and is none");
        let other = text.replace("***", "open barley").replace("3", "4");
        assert_eq!(apply(&*settings, &other).unwrap(), "Settings changed: most from 3 to 4.");
        assert!(part.config().key.is("open barley"));
    }

    #[test]
    fn a_setting_that_is_none_stays_none_and_one_without_its_line_gets_its_default() {
        let part = Part(Mutex::new(Keyed { rate: None, most: 7, ..Keyed::default() }));
        let settings = of::<Keyed, _>(&part).unwrap();
        let change = |name: &str, now: &str, next: &str| Change {
            name: name.to_owned(),
            now: now.to_owned(),
            next: next.to_owned(),
        };
        assert_eq!(review(&*settings, "key = 'x'").unwrap(), [change("most", "7", "3")]);
        assert_eq!(review(&*settings, "key = 'x'\nmost = 7\nrate = 0.1").unwrap(), [change("rate", "none", "0.1")]);
        assert_eq!(review(&*settings, "key = 'x'\nmost = 0").unwrap_err(), "invalid `most`: must be at least 1");
        let why = review(&*settings, "key = 'x'\nmost = 'many'").unwrap_err();
        assert!(why.starts_with("`most`: invalid type: string"), "{why}");
        assert!(review(&*settings, "mots = 1").unwrap_err().contains("unknown field `mots`"));
        assert_eq!(part.config().most, 7);
    }
}

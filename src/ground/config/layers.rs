//! Documents in layers: a table as it was written, read on top of another one.
use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{self, DeserializeOwned, DeserializeSeed, IntoDeserializer, MapAccess, SeqAccess, Visitor, value},
    forward_to_deserialize_any,
};

/// A part of a document of any format, as it was written: omitted fields are not yet defaults.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) enum Layer {
    #[default]
    Unit,
    Bool(bool),
    Signed(i64),
    Unsigned(u64),
    Float(f64),
    Text(String),
    List(Vec<Self>),
    Table(Vec<(String, Self)>),
}

impl Layer {
    /// Lays this part over `base`. Tables are merged to a depth of `levels`, and everything else
    /// replaces the base's. `true` over a table keeps the table: it only switches the part on.
    pub(crate) fn over(self, base: &Self, levels: u32) -> Self {
        match (self, base) {
            (Self::Unit, base) => base.clone(),
            (Self::Bool(true), base @ Self::Table(_)) if levels > 0 => base.clone(),
            (Self::Table(mine), Self::Table(base)) if levels > 0 => {
                let mut merged = base.clone();
                for (key, mine) in mine {
                    match merged.iter_mut().find(|(known, _)| *known == key) {
                        Some((_, value)) => *value = mine.over(value, levels - 1),
                        None => merged.push((key, mine)),
                    }
                }
                Self::Table(merged)
            }
            (mine, _) => mine,
        }
    }

    /// Reads the settings, with defaults for omitted ones.
    pub(crate) fn read<T: DeserializeOwned + Default>(self) -> Result<T, LayerError> {
        match self {
            Self::Unit => Ok(T::default()),
            layer => T::deserialize(layer),
        }
    }
}

/// The error for a part that cannot be read, with the path of the field.
#[derive(Debug)]
pub(crate) struct LayerError {
    path: String,
    message: String,
}

impl LayerError {
    /// Adds a section to the path.
    pub(crate) fn within(mut self, section: &str) -> Self {
        let dot = if self.path.is_empty() { "" } else { "." };
        self.path = format!("{section}{dot}{}", self.path);
        self
    }
}

impl fmt::Display for LayerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.path.as_str() {
            "" => f.write_str(&self.message),
            path => write!(f, "in `{path}`: {}", self.message),
        }
    }
}

impl std::error::Error for LayerError {}

impl de::Error for LayerError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self { path: String::new(), message: message.to_string() }
    }
}

impl<'de> Deserialize<'de> for Layer {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Reader)
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Layer;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("settings")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Layer, E> {
        Ok(Layer::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Layer, E> {
        Ok(Layer::Signed(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Layer, E> {
        Ok(Layer::Unsigned(value))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Layer, E> {
        Ok(Layer::Float(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Layer, E> {
        Ok(Layer::Text(value.to_owned()))
    }

    fn visit_unit<E>(self) -> Result<Layer, E> {
        Ok(Layer::Unit)
    }

    fn visit_none<E>(self) -> Result<Layer, E> {
        Ok(Layer::Unit)
    }

    fn visit_some<D: Deserializer<'de>>(self, from: D) -> Result<Layer, D::Error> {
        Layer::deserialize(from)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Layer, A::Error> {
        let mut list = Vec::new();
        while let Some(value) = from.next_element()? {
            list.push(value);
        }
        Ok(Layer::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Layer, A::Error> {
        let mut table: Vec<(String, Layer)> = Vec::new();
        while let Some((key, value)) = from.next_entry::<String, Layer>()? {
            if table.iter().any(|(known, _)| *known == key) {
                return Err(de::Error::custom(format_args!("duplicate field `{key}`")));
            }
            table.push((key, value));
        }
        Ok(Layer::Table(table))
    }
}

impl<'de> IntoDeserializer<'de, LayerError> for Layer {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

impl<'de> Deserializer<'de> for Layer {
    type Error = LayerError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, LayerError> {
        match self {
            Self::Unit => visitor.visit_unit(),
            Self::Bool(value) => visitor.visit_bool(value),
            Self::Signed(value) => visitor.visit_i64(value),
            Self::Unsigned(value) => visitor.visit_u64(value),
            Self::Float(value) => visitor.visit_f64(value),
            Self::Text(value) => visitor.visit_string(value),
            Self::List(list) => visitor.visit_seq(value::SeqDeserializer::new(list.into_iter())),
            Self::Table(table) => visitor.visit_map(Fields::new(table)),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, LayerError> {
        match self {
            Self::Unit => visitor.visit_none(),
            layer => visitor.visit_some(layer),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, LayerError> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, LayerError> {
        match self {
            Self::Text(variant) => {
                let variant: value::StringDeserializer<LayerError> = variant.into_deserializer();
                variant.deserialize_enum(name, variants, visitor)
            }
            Self::Table(table) => {
                value::MapAccessDeserializer::new(Fields::new(table)).deserialize_enum(name, variants, visitor)
            }
            layer => layer.deserialize_any(visitor),
        }
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct
        seq tuple tuple_struct map struct identifier ignored_any
    }
}

/// The fields of a table, read one by one. An error of a value gets the path of its field.
struct Fields {
    rest: std::vec::IntoIter<(String, Layer)>,
    value: Option<(String, Layer)>,
}

impl Fields {
    fn new(table: Vec<(String, Layer)>) -> Self {
        Self { rest: table.into_iter(), value: None }
    }
}

impl<'de> MapAccess<'de> for Fields {
    type Error = LayerError;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, LayerError> {
        self.value = self.rest.next();
        let Some((key, _)) = &self.value else { return Ok(None) };
        let key: value::StrDeserializer<'_, LayerError> = key.as_str().into_deserializer();
        seed.deserialize(key).map(Some)
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, LayerError> {
        let Some((key, value)) = self.value.take() else {
            return Err(de::Error::custom("a value without a key"));
        };
        seed.deserialize(value).map_err(|error| error.within(&key))
    }
}

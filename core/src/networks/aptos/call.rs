//! Calls in JSON: the `entry_function_payload` of a node's REST API, whose arguments are encoded
//! by the function's ABI.

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;
use sui_sdk_types::{Address, Identifier, StructTag, TypeTag};

use super::{
    address::parse_address,
    chain_data::Abi,
    move_types::{MAX_TEXT, is_standard, parse_type, special},
    transfers,
    tx::{EntryFunction, ModuleId},
};
use crate::{
    amount::{U256, parse_u256},
    fault::Fault,
};

/// Bytes of JSON.
const MAX_JSON: usize = 256 * 1024;
/// Arguments, parameters and type arguments of a function; Move has no more.
const MAX_ARGUMENTS: usize = 255;

/// A checked call. Made by [`JsonCall::parse`] only.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct JsonCall {
    /// The JSON as it came.
    pub json: String,
    /// The function, and its type arguments; no arguments yet.
    pub target: EntryFunction,
    /// The arguments.
    pub arguments: Vec<Value>,
    /// The whole call, where the function is one of the framework's that send coins.
    pub known: Option<EntryFunction>,
}

/// See the node API's `EntryFunctionPayload`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EntryFunctionPayload {
    r#type: String,
    function: String,
    #[serde(default)]
    type_arguments: Vec<String>,
    #[serde(default)]
    arguments: Vec<Value>,
}

impl JsonCall {
    /// Reads a call. What can be said without the ABI is checked.
    ///
    /// # Errors
    /// [`crate::fault::Class::Invalid`] with the path from `payload` on.
    pub fn parse(json: &str) -> Result<Self, Fault> {
        if json.len() > MAX_JSON {
            let problem = format_args!("is too long: at most {MAX_JSON} bytes of JSON");
            return Err(Fault::field("payload", problem));
        }
        let wire: EntryFunctionPayload = serde_json::from_str(json).map_err(|_| {
            Fault::field(
                "payload",
                "must be JSON with type, function, type_arguments and arguments, and nothing else",
            )
        })?;
        if wire.r#type != "entry_function_payload" {
            let problem = "must be entry_function_payload";
            return Err(Fault::field("payload.type", problem));
        }
        for (name, count) in [
            ("type_arguments", wire.type_arguments.len()),
            ("arguments", wire.arguments.len()),
        ] {
            if count > MAX_ARGUMENTS {
                return Err(Fault::field(
                    format_args!("payload.{name}"),
                    format_args!("are too many: at most {MAX_ARGUMENTS}"),
                ));
            }
        }
        // A function is named as a struct is.
        let function: StructTag = Some(&wire.function)
            .filter(|text| text.len() <= MAX_TEXT)
            .and_then(|text| text.parse().ok())
            .filter(|tag: &StructTag| tag.type_params().is_empty())
            .ok_or_else(|| {
                Fault::field(
                    "payload.function",
                    "must be address::module::function, e.g. 0x1::aptos_account::transfer",
                )
            })?;
        let ty_args = wire
            .type_arguments
            .iter()
            .enumerate()
            .map(|(place, text)| {
                parse_type(text).map_err(|error| {
                    Fault::field(format_args!("payload.type_arguments[{place}]"), error)
                })
            })
            .collect::<Result<_, _>>()?;
        for (place, value) in wire.arguments.iter().enumerate() {
            plain(value).map_err(|problem| argument(place, problem))?;
        }
        let mut call = Self {
            json: json.to_owned(),
            target: EntryFunction {
                module: ModuleId {
                    address: *function.address(),
                    name: function.module().clone(),
                },
                function: function.name().clone(),
                ty_args,
                args: Vec::new(),
            },
            arguments: wire.arguments,
            known: None,
        };
        if let Some(known) = transfers::find(&call.target.module, &call.target.function) {
            call.known = Some(call.fill(known.params, known.type_parameters)?);
        }
        Ok(call)
    }

    /// The call with its arguments encoded by the ABI that a node has told.
    ///
    /// # Errors
    /// [`crate::fault::Class::Invalid`] with the path from `payload` on.
    pub(super) fn encode(&self, abi: &Abi) -> Result<EntryFunction, Fault> {
        let function = |problem: &str| Err(Fault::field("payload.function", problem));
        if abi.params.len() > MAX_ARGUMENTS || abi.params.iter().any(|text| text.len() > MAX_TEXT) {
            return function("has invalid parameters according to the chain node");
        }
        let signers = abi
            .params
            .iter()
            .take_while(|text| matches!(text.as_str(), "signer" | "&signer"))
            .count();
        if signers > 1 {
            return function("needs more than one signer");
        }
        let params: Vec<&str> = abi
            .params
            .iter()
            .skip(signers)
            .map(String::as_str)
            .collect();
        let entry = self.fill(&params, abi.type_parameters)?;
        // What moves was shown by what the framework has.
        if self.known.as_ref().is_some_and(|known| *known != entry) {
            return function(
                "has parameters, according to the chain node, that differ from the framework's",
            );
        }
        Ok(entry)
    }

    fn fill(&self, params: &[&str], type_parameters: u64) -> Result<EntryFunction, Fault> {
        let ty_args = &self.target.ty_args;
        if u64::try_from(ty_args.len()) != Ok(type_parameters) {
            return Err(Fault::field(
                "payload.type_arguments",
                format_args!("must be {type_parameters} for this function"),
            ));
        }
        if self.arguments.len() != params.len() {
            return Err(Fault::field(
                "payload.arguments",
                format_args!("must be {} for this function", params.len()),
            ));
        }
        let args = self
            .arguments
            .iter()
            .zip(params)
            .enumerate()
            .map(|(place, (value, param))| {
                let tag = instantiate(param, ty_args)
                    .ok_or_else(|| argument(place, UNSUPPORTED.into()))?;
                let bytes = if self.known.is_some() {
                    // The whole call is compared with what the framework takes.
                    in_bcs(value, &tag)
                } else {
                    canonical_bcs(value, &tag)
                };
                bytes.map_err(|problem| argument(place, problem))
            })
            .collect::<Result<_, _>>()?;
        Ok(EntryFunction {
            args,
            ..self.target.clone()
        })
    }
}

const UNSUPPORTED: &str = "has a type that is not supported in JSON: give the transaction in BCS";

fn argument(place: usize, problem: String) -> Fault {
    Fault::field(format_args!("payload.arguments[{place}]"), problem)
}

/// Whether a value can be an argument at all.
fn plain(value: &Value) -> Result<(), String> {
    match value {
        Value::Null | Value::Bool(_) | Value::String(_) => Ok(()),
        Value::Number(number) if number.is_u64() => Ok(()),
        Value::Number(_) => Err(NOT_A_NUMBER.into()),
        Value::Array(values) => values.iter().try_for_each(plain),
        Value::Object(_) => Err("must not be an object".into()),
    }
}

const NOT_A_NUMBER: &str =
    "must be a whole number that is not negative; above 2^64 - 1, write it as a string";

/// A parameter's type: `T0`, `T1` and so on stand for the type arguments.
fn instantiate(param: &str, ty_args: &[TypeTag]) -> Option<TypeTag> {
    let mut text = String::new();
    let mut rest = param;
    while let Some(first) = rest.chars().next() {
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let end = match rest.find(|c| !is_word(c)) {
            Some(0) => first.len_utf8(),
            Some(end) => end,
            None => rest.len(),
        };
        let (word, after) = rest.split_at_checked(end)?;
        let number = word
            .strip_prefix('T')
            .filter(|_| !text.ends_with(':'))
            .and_then(|digits| digits.parse::<usize>().ok());
        match number {
            Some(number) => text.push_str(&ty_args.get(number)?.to_string()),
            None => text.push_str(word),
        }
        if text.len() > MAX_TEXT {
            return None;
        }
        rest = after;
    }
    parse_type(&text).ok()
}

/// A value as BCS takes it.
#[derive(Serialize)]
#[serde(untagged)]
enum MoveValue {
    Bool(bool),
    U8(u8),
    U16(u16),
    U32(u32),
    U64(u64),
    U128(u128),
    /// Little-endian.
    U256([u8; 32]),
    Address(Address),
    /// A string, or bytes that were given as text.
    Text(String),
    /// A vector; an option is one of at most one element.
    List(Vec<MoveValue>),
}

/// The bytes of an argument. `abi` is what a chain node says, which may be false: the chain reads the
/// bytes by the function's real parameters, and a text can be as long as a number.
fn canonical_bcs(value: &Value, abi: &TypeTag) -> Result<Vec<u8>, String> {
    let bytes = in_bcs(value, abi)?;
    // Some bytes are as long as a number of 16 bits, which is no amount.
    let short = is_bytes(&convert(value, abi)?);
    let mistaken = AMOUNTS
        .iter()
        .skip(usize::from(short))
        .flat_map(|readings| readings())
        .any(|(tag, reads)| in_bcs(value, &tag).is_ok_and(|asked| asked != bytes) && reads(&bytes));
    if mistaken {
        return Err(MISTAKEN.into());
    }
    Ok(bytes)
}

fn in_bcs(value: &Value, tag: &TypeTag) -> Result<Vec<u8>, String> {
    bcs::to_bytes(&convert(value, tag)?).map_err(|error| error.to_string())
}

const MISTAKEN: &str =
    "is ambiguous if the chain node reports a false ABI: give the transaction in BCS";

/// Whether it is made of bytes that were given as numbers.
fn is_bytes(value: &MoveValue) -> bool {
    match value {
        MoveValue::U8(_) => true,
        MoveValue::List(values) => values.iter().all(is_bytes),
        _ => false,
    }
}

/// A type, and whether the chain takes bytes for one of its values.
type ArgumentCheck = (TypeTag, fn(&[u8]) -> bool);

/// The types of amounts and recipients.
const AMOUNTS: [fn() -> [ArgumentCheck; 5]; 6] = [
    || readings::<u16>(TypeTag::U16),
    || readings::<u32>(TypeTag::U32),
    || readings::<u64>(TypeTag::U64),
    || readings::<u128>(TypeTag::U128),
    || readings::<[u8; 32]>(TypeTag::U256),
    || readings::<[u8; 32]>(TypeTag::Address),
];

fn readings<T: DeserializeOwned>(tag: TypeTag) -> [ArgumentCheck; 5] {
    let list = |tag: &TypeTag| TypeTag::Vector(Box::new(tag.clone()));
    let lists = list(&tag);
    [
        (option(tag.clone()), reads::<Option<T>>),
        (list(&list(&lists)), reads::<Vec<Vec<Vec<T>>>>),
        (list(&lists), reads::<Vec<Vec<T>>>),
        (lists, reads::<Vec<T>>),
        (tag, reads::<T>),
    ]
}

fn reads<T: DeserializeOwned>(bytes: &[u8]) -> bool {
    bcs::from_bytes::<T>(bytes).is_ok()
}

fn option(inner: TypeTag) -> TypeTag {
    let module = const { Identifier::from_static("option") };
    let name = const { Identifier::from_static("Option") };
    StructTag::new(special(1), module, name, vec![inner]).into()
}

/// The value of a type. The recursion ends with the type's.
fn convert(value: &Value, tag: &TypeTag) -> Result<MoveValue, String> {
    Ok(match tag {
        TypeTag::Bool => MoveValue::Bool(value.as_bool().ok_or("must be true or false")?),
        TypeTag::U8 => MoveValue::U8(number(value, 8)?.to()),
        TypeTag::U16 => MoveValue::U16(number(value, 16)?.to()),
        TypeTag::U32 => MoveValue::U32(number(value, 32)?.to()),
        TypeTag::U64 => MoveValue::U64(number(value, 64)?.to()),
        TypeTag::U128 => MoveValue::U128(number(value, 128)?.to()),
        TypeTag::U256 => MoveValue::U256(number(value, 256)?.to_le_bytes()),
        TypeTag::Address => address(value)?,
        // Text is taken as its UTF-8, hex too: what @aptos-labs/ts-sdk makes of it.
        TypeTag::Vector(inner) if **inner == TypeTag::U8 && value.is_string() => text(value)?,
        TypeTag::Vector(inner) => {
            let problem = match **inner {
                TypeTag::U8 => "must be a list of numbers, or text, which is encoded as UTF-8",
                _ => "must be a list",
            };
            list(value.as_array().ok_or(problem)?, inner)?
        }
        TypeTag::Struct(tag) => match tag.type_params() {
            [] if is_standard(tag, "string", "String") => text(value)?,
            [_] if is_standard(tag, "object", "Object") => address(value)?,
            [_] if is_standard(tag, "option", "Option") && value.is_null() => {
                MoveValue::List(Vec::new())
            }
            [inner] if is_standard(tag, "option", "Option") => {
                MoveValue::List(vec![convert(value, inner)?])
            }
            _ => return Err(UNSUPPORTED.into()),
        },
        TypeTag::Signer => return Err(UNSUPPORTED.into()),
    })
}

fn list(values: &[Value], tag: &TypeTag) -> Result<MoveValue, String> {
    let values = values.iter().map(|value| convert(value, tag));
    Ok(MoveValue::List(values.collect::<Result<_, _>>()?))
}

fn text(value: &Value) -> Result<MoveValue, String> {
    let text = value.as_str().ok_or("must be a string")?;
    Ok(MoveValue::Text(text.to_owned()))
}

fn address(value: &Value) -> Result<MoveValue, String> {
    let text = value.as_str().ok_or("must be an address as a string")?;
    parse_address(text)
        .map(MoveValue::Address)
        .map_err(|error| error.to_string())
}

fn number(value: &Value, bits: usize) -> Result<U256, String> {
    let number = match value {
        Value::Number(number) => number.as_u64().map(U256::from).ok_or(NOT_A_NUMBER)?,
        Value::String(text) => parse_u256(text).map_err(|error| error.to_string())?,
        _ => return Err("must be a number or a string that holds one".into()),
    };
    if number.bit_len() > bits {
        return Err(format!("is too large: at most {bits} bits"));
    }
    Ok(number)
}

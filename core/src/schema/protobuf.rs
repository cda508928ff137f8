//! What a request in protobuf may not hold, which every decoder would drop without a word.

use prost_reflect::{DynamicMessage, FieldDescriptor, Kind, MessageDescriptor, Value};

use super::path::FieldPath;
use crate::fault::{Class, Fault};

/// Refuses fields and enum values that the schema does not have, as JSON requests may not hold them either.
///
/// # Errors
/// [`Class::Invalid`] with the path of the field, or when it is no such message.
pub(super) fn check(descriptor: &MessageDescriptor, message: &[u8]) -> Result<(), Fault> {
    let message = DynamicMessage::decode(descriptor.clone(), message).map_err(|error| {
        Fault::new(Class::Invalid, "the message cannot be decoded").caused_by(error)
    })?;
    check_message(&message, &FieldPath::Root)
}

fn check_message(message: &DynamicMessage, path: &FieldPath<'_>) -> Result<(), Fault> {
    if let Some(unknown) = message.unknown_fields().next() {
        let number = unknown.number().to_string();
        return Err(FieldPath::Field(path, &number).fault("unknown field"));
    }
    message.fields().try_for_each(|(field, value)| {
        check_value(&field, value, &FieldPath::Field(path, field.json_name()))
    })
}

fn check_value(field: &FieldDescriptor, value: &Value, path: &FieldPath<'_>) -> Result<(), Fault> {
    match (value, field.kind()) {
        (Value::List(items), _) => items
            .iter()
            .enumerate()
            .try_for_each(|(index, item)| check_value(field, item, &FieldPath::Item(path, index))),
        (Value::Message(message), _) => check_message(message, path),
        (Value::EnumNumber(number), Kind::Enum(known)) if known.get_value(*number).is_none() => {
            Err(path.fault("is an unknown enum number"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use prost::Message as _;

    use super::*;
    use crate::schema::{reflect, wire};

    fn refused(parts: &[&[u8]]) -> String {
        let request = reflect::message("mpcvault.platform.v1.CreateSigningRequestRequest");
        check(&request.expect("request"), &parts.concat())
            .expect_err("refused")
            .message()
            .to_owned()
    }

    /// A message as field `number` (below 2048) of another.
    fn inside(number: u16, message: &[u8]) -> Vec<u8> {
        let tag = u64::from(number) << 3 | 2;
        let mut bytes = Vec::new();
        prost::encoding::encode_varint(tag, &mut bytes);
        prost::encoding::encode_varint(message.len() as u64, &mut bytes);
        [&bytes, message].concat()
    }

    #[test]
    fn check__should_refuse_what_the_schema_does_not_have_wherever_it_is() {
        const UNKNOWN: &[u8] = &[0x98, 0x06, 1]; // field 99
        let payload = wire::EvmSendNative {
            chain_id: 1,
            ..Default::default()
        }
        .encode_to_vec();
        assert_eq!(refused(&[UNKNOWN]), "99: unknown field");
        assert_eq!(
            refused(&[&inside(1, &[&payload, UNKNOWN].concat())]),
            "evmSendNative.99: unknown field",
        );
        let gas = inside(5, &inside(1, UNKNOWN));
        assert_eq!(
            refused(&[&inside(1, &[payload, gas].concat())]),
            "evmSendNative.gasFee.maxFee.99: unknown field",
        );
        let message = wire::EvmMessage {
            r#type: 7,
            ..Default::default()
        };
        assert_eq!(
            refused(&[&inside(16, &message.encode_to_vec())]),
            "evmMessage.type: is an unknown enum number",
        );
        assert_eq!(refused(&[&[0xff]]), "the message cannot be decoded");
    }

    #[test]
    fn check__should_name_the_item_of_a_list() {
        let request = reflect::message("mpcvault.platform.v1.CreateBatchPaymentRequest");
        let recipients = [inside(2, &[]), inside(2, &[0x98, 0x06, 1])].concat();
        let message = inside(5, &recipients);
        let refused = check(&request.expect("request"), &message).expect_err("refused");
        assert_eq!(
            refused.message(),
            "btcBatchSendNative.recipients[1].99: unknown field"
        );
    }

    #[test]
    fn check__should_accept_every_field_of_the_schema() {
        let request = reflect::message("mpcvault.platform.v1.CreateSigningRequestRequest");
        let message = wire::CreateSigningRequestRequest {
            notes: Some("rent".to_owned()),
            broadcast_tx: Some(true),
            ..Default::default()
        };
        check(&request.expect("request"), &message.encode_to_vec()).expect("accepted");
    }
}

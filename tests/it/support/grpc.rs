//! A gRPC client that knows of the service what the committed schema says. Messages are written in
//! JSON; prost-reflect's own mapping, which the service does not use, puts them into protobuf.

use std::sync::LazyLock;

use axum::{body::Bytes, http::uri::PathAndQuery};
use covault_core::schema::DESCRIPTOR_SET;
use futures::{Stream, stream};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use prost::Message as _;
use prost_reflect::{
    DescriptorPool, DynamicMessage, MessageDescriptor, MethodDescriptor, SerializeOptions,
};
use serde_json::Value;
use tonic::{
    Status,
    metadata::{AsciiMetadataKey, MetadataMap},
};
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};

#[path = "../../../src/grpc/codec.rs"]
mod codec;

static SCHEMA: LazyLock<DescriptorPool> =
    LazyLock::new(|| DescriptorPool::decode(DESCRIPTOR_SET).unwrap());

/// The method that an operation is over gRPC; `None` when the schema has none.
fn method(operation: &str) -> Option<MethodDescriptor> {
    let (service, name) = match operation {
        "sweep/wallets" => ("SweepAPI", "CreateDepositWallet".to_owned()),
        "sweep/addWatchAddress" => ("SweepAPI", "AddWatchAddress".to_owned()),
        _ => {
            let (first, rest) = operation.split_at(1);
            ("PlatformAPI", first.to_uppercase() + rest)
        }
    };
    let service = SCHEMA.get_service_by_name(&format!("mpcvault.platform.v1.{service}"))?;
    let method = service.methods().find(|method| method.name() == name)?;
    Some(method)
}

/// The names of the fields that an operation's answer has, beside oneofs.
pub fn answer_fields(operation: &str) -> Vec<String> {
    let answer = method(operation).unwrap().output();
    let fields = answer
        .fields()
        .filter(|field| field.containing_oneof().is_none());
    fields.map(|field| field.json_name().to_owned()).collect()
}

/// An answer in JSON, and its metadata.
pub type GrpcResult = Result<(Value, MetadataMap), Status>;

/// The platform and sweep APIs over gRPC, with one token.
#[derive(Clone)]
pub struct GrpcClient {
    client: Client<HttpConnector, tonic::body::Body>,
    target: String,
    pub token: String,
}

impl GrpcClient {
    pub fn new(target: &str, token: &str) -> Self {
        Self {
            client: Client::builder(TokioExecutor::new())
                .http2_only(true)
                .build_http(),
            target: target.to_owned(),
            token: token.to_owned(),
        }
    }

    fn origin(&self) -> axum::http::Uri {
        format!("http://{}", self.target).parse().unwrap()
    }

    /// Calls an operation of REST's name with more metadata.
    pub async fn call(&self, operation: &str, body: &Value, more: &[(&str, &str)]) -> GrpcResult {
        let method = method(operation).unwrap();
        let message = DynamicMessage::deserialize(method.input(), body).unwrap();
        let message = Bytes::from(message.encode_to_vec());
        let path = path_of(method.parent_service().full_name(), method.name());
        let (bytes, metadata) = self.send(path, stream::iter([message]), more).await?;
        Ok((shown(method.output(), &bytes), metadata))
    }

    /// Calls a method of the platform, that the schema need not have, with bytes, that need not be a
    /// message.
    pub async fn call_with_bytes(&self, method: &str, bytes: &'static [u8]) -> Status {
        let path = path_of("mpcvault.platform.v1.PlatformAPI", method);
        let message = stream::iter([Bytes::from_static(bytes)]);
        self.send(path, message, &[]).await.unwrap_err()
    }

    /// Calls an operation with a message that never arrives.
    pub async fn call_without_end(&self, operation: &str, more: &[(&str, &str)]) -> Status {
        let method = method(operation).unwrap();
        let path = path_of(method.parent_service().full_name(), method.name());
        self.send(path, stream::pending(), more).await.unwrap_err()
    }

    async fn send(
        &self,
        path: PathAndQuery,
        messages: impl Stream<Item = Bytes> + Send + 'static,
        more: &[(&str, &str)],
    ) -> Result<(Bytes, MetadataMap), Status> {
        let mut grpc = tonic::client::Grpc::with_origin(self.client.clone(), self.origin());
        grpc.ready().await.unwrap();
        let mut request = tonic::Request::new(messages);
        for (name, value) in [[("x-mtoken", self.token.as_str())].as_slice(), more].concat() {
            let name: AsciiMetadataKey = name.parse().unwrap();
            request.metadata_mut().insert(name, value.parse().unwrap());
        }
        let answer = grpc
            .client_streaming(request, path, codec::RawCodec)
            .await?;
        let (metadata, bytes, _) = answer.into_parts();
        Ok((bytes, metadata))
    }

    /// Whether the service says that it can work.
    pub async fn is_serving(&self) -> bool {
        let mut client = HealthClient::with_origin(self.client.clone(), self.origin());
        let answer = client.check(HealthCheckRequest::default()).await.unwrap();
        answer.get_ref().status() == ServingStatus::Serving
    }
}

fn path_of(service: &str, method: &str) -> PathAndQuery {
    format!("/{service}/{method}").parse().unwrap()
}

/// A message in JSON; what is unset is not there.
fn shown(descriptor: MessageDescriptor, bytes: &[u8]) -> Value {
    let message = DynamicMessage::decode(descriptor, bytes).unwrap();
    let options = SerializeOptions::new().skip_default_fields(false);
    message
        .serialize_with_options(serde_json::value::Serializer, &options)
        .unwrap()
}

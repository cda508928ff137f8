// The program that decides for a client signer, with a decoder that Covault has no part in (Go's protobuf) and the schema as
// it is committed. Approves messages whose content is `approve`, and prints what it was asked. tests/it/client_signer.rs
// builds it, and starts it with a port and the compiled schema.
package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
)

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// The message of the public schema, from the file with the compiled one.
func signingRequest(path string) protoreflect.MessageDescriptor {
	set := &descriptorpb.FileDescriptorSet{}
	if err := proto.Unmarshal(must(os.ReadFile(path)), set); err != nil {
		panic(err)
	}
	files := must(protodesc.NewFiles(set))
	found := must(files.FindDescriptorByName("mpcvault.platform.v1.SigningRequest"))
	return found.(protoreflect.MessageDescriptor)
}

// What stands under a path of names; where a message on the way is not set, what an empty one has there.
func at(message protoreflect.Message, path ...protoreflect.Name) protoreflect.Value {
	field := message.Descriptor().Fields().ByName(path[0])
	if len(path) == 1 {
		return message.Get(field)
	}
	return at(message.Get(field).Message(), path[1:]...)
}

func main() {
	schema := signingRequest(os.Args[2])
	listener := must(net.Listen("tcp", "127.0.0.1:"+os.Args[1]))
	fmt.Println("listening")
	panic(http.Serve(listener, http.HandlerFunc(func(answer http.ResponseWriter, question *http.Request) {
		asked := dynamicpb.NewMessage(schema)
		body, err := io.ReadAll(question.Body)
		if err == nil {
			err = proto.Unmarshal(body, asked)
		}
		if err != nil || len(asked.GetUnknown()) > 0 {
			fmt.Println("no SigningRequest of this schema:", err)
			answer.WriteHeader(http.StatusBadRequest)
			return
		}
		kind, content := protoreflect.Name(""), ""
		if set := asked.WhichOneof(schema.Oneofs().ByName("type")); set != nil {
			kind = set.Name()
		}
		if kind == "evm_message" {
			content = string(at(asked, kind, "content").Bytes())
		}
		fmt.Println("asked", at(asked, "uuid"), at(asked, "vault_uuid", "value"), kind, content)
		if content != "approve" {
			answer.WriteHeader(http.StatusForbidden)
		}
	})))
}

// Checks a webhook of Covault: see deposits.md. Needs Go 1.18 or newer, and nothing else.
// go run verify_webhook.go < WEBHOOK.json    {"headers": {...}, "body": "the raw body", "secret": "whsec_...",
// "keys": what GET /v1/webhooks/keys answers}; leave out "secret" or "keys" to check by the other alone.
package main

import (
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

const toleranceSeconds = 300

// Anybody can sign with the key of a setting that was left empty.
const secretBytes = 24

// KeySet is what GET /v1/webhooks/keys answers.
type KeySet struct {
	Keys []struct {
		X string `json:"x"`
	} `json:"keys"`
}

func (set *KeySet) signed(message, signature []byte) bool {
	for _, key := range set.Keys {
		public, err := base64.RawURLEncoding.DecodeString(key.X)
		if err == nil && len(public) == ed25519.PublicKeySize && ed25519.Verify(public, message, signature) {
			return true
		}
	}
	return false
}

// VerifyWebhook returns the event's id, or an error. body is the raw body; the names of headers are in lower case. An
// empty secret, or keys that are nil, are not checked by.
func VerifyWebhook(body string, headers map[string]string, secret string, keys *KeySet, now time.Time) (string, error) {
	id, timestamp := headers["webhook-id"], headers["webhook-timestamp"]
	seconds, err := strconv.ParseInt(timestamp, 10, 64)
	if id == "" || err != nil {
		return "", errors.New("no id or time")
	}
	if age := now.Unix() - seconds; age > toleranceSeconds || age < -toleranceSeconds {
		return "", errors.New("too old, or too new")
	}
	signed := []byte(id + "." + timestamp + "." + body)
	of := func(version string, isRight func([]byte) bool) bool {
		for _, one := range strings.Split(headers["webhook-signature"], " ") {
			parts := strings.SplitN(one, ",", 2)
			if len(parts) != 2 || parts[0] != version {
				continue
			}
			signature, err := base64.StdEncoding.DecodeString(parts[1])
			if err == nil && isRight(signature) {
				return true
			}
		}
		return false
	}
	if secret == "" && keys == nil {
		return "", errors.New("nothing to check by")
	}
	if secret != "" {
		key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, "whsec_"))
		if err != nil {
			return "", errors.New("the secret cannot be read")
		}
		if len(key) < secretBytes {
			return "", errors.New("the secret is too short")
		}
		mac := hmac.New(sha256.New, key)
		mac.Write(signed)
		sum := mac.Sum(nil)
		if !of("v1", func(one []byte) bool { return hmac.Equal(sum, one) }) {
			return "", errors.New("v1 is wrong")
		}
	}
	if keys != nil {
		if !of("v1a", func(one []byte) bool { return keys.signed(signed, one) }) {
			return "", errors.New("v1a is wrong")
		}
		over, err := base64.StdEncoding.DecodeString(headers["signature"])
		if err != nil || !keys.signed([]byte(body), over) {
			return "", errors.New("Signature is wrong")
		}
	}
	var event struct {
		ID string `json:"id"`
	}
	if err := json.Unmarshal([]byte(body), &event); err != nil {
		return "", err
	}
	if event.ID != id {
		return "", errors.New("the id is of another event")
	}
	return id, nil
}

func main() {
	var webhook struct {
		Headers map[string]string `json:"headers"`
		Body    string            `json:"body"`
		Secret  string            `json:"secret"`
		Keys    *KeySet           `json:"keys"`
	}
	err := json.NewDecoder(os.Stdin).Decode(&webhook)
	var id string
	if err == nil {
		id, err = VerifyWebhook(webhook.Body, webhook.Headers, webhook.Secret, webhook.Keys, time.Now())
	}
	if err != nil {
		fmt.Printf("refused: %v\n", err)
		os.Exit(1)
	}
	fmt.Println(id)
}

// Shows the OpenAPI document of this service. Nothing is loaded from elsewhere; the page's
// Content-Security-Policy forbids it too.
SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#page",
  // Otherwise the document's address would be sent to a checker on the internet.
  validatorUrl: null,
  deepLinking: true,
  displayOperationId: true,
  docExpansion: "list",
  defaultModelsExpandDepth: 0,
  filter: true,
  // Tokens are not kept in the browser.
  persistAuthorization: false,
  supportedSubmitMethods: ["get", "post"],
});
